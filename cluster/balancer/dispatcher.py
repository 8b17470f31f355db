"""The balancer's shell: the mailbox, the bootstrap client, the clock, and what clients wait for.

Owns all that the core must not know. Everything here runs on the event loop, except two callbacks of
other threads that only hand over what arrived.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from functools import partial

from bootstrap.client import BootstrapClient
from bootstrap.commands import CommandAnswered
from bootstrap.directory import BalancerJoined, DirectoryEvent, Fenced, Joined, Left, LoadsChanged
from bootstrap.identity import Peer, Role, new_room
from bootstrap.inspection import LedgerReport
from bootstrap.mailbox import Mailbox
from bootstrap.membership import BalancerMember, LeaveReason, WorkerLoad, WorkerState
from bootstrap.messages import FailureReason, Message
from bootstrap.security import Security
from cluster.balancer.asks import Ask, requests_for
from cluster.balancer.attendance import Attendance
from cluster.balancer.commands import Commands
from cluster.balancer.core import BalancerCore, News, Post
from cluster.balancer.crossing import Crossing
from cluster.balancer.early_aborts import EarlyAborts
from cluster.balancer.engine_metrics import EngineMetrics
from cluster.balancer.generation import Generation, GenerationFailed
from cluster.balancer.inspection import LedgerAsks
from cluster.balancer.instructions import (
    Deliver,
    Dispatch,
    EndAttempt,
    Fail,
    Failure,
    FailureKind,
    Measured,
    Retry,
)
from cluster.balancer.journal import note
from cluster.balancer.members import Members, Reason
from cluster.balancer.metrics import Metrics
from cluster.balancer.policy import Pool
from cluster.balancer.pulse import Pulse
from cluster.balancer.queue import QueueBounds
from cluster.balancer.readiness import Readiness
from cluster.balancer.registration import own_ref, registration
from cluster.balancer.request import Request, RequestSpec, RetryRules
from cluster.balancer.settings import BalancerSettings
from cluster.balancer.stats import RequestStats
from cluster.balancer.stories import Stories
from cluster.balancer.text import ChoiceText, TextRules
from cluster.balancer.timelines import Timelines
from cluster.balancer.tokenization import Tokenization
from cluster.balancer.tracing import Traces
from engine.tokenizer import Tokenizer

TICK_S = 0.1

log = logging.getLogger(__name__)


class Dispatcher:
    """Made and stopped on the event loop that it belongs to; the sockets live in between."""

    def __init__(self, settings: BalancerSettings, tokenizer: Tokenizer, url: str) -> None:
        """Open the sockets; raises ConfigError. Needs a running loop. Clients connect to `url`."""
        self.settings = settings
        self.text = Tokenization(tokenizer, settings.num_text_threads)
        self.metrics = Metrics(settings.model_name)
        self.readiness = Readiness()
        self.members_changed = asyncio.Event()  # set at each change, for whoever clears it
        self.leaving = False  # nobody new should come
        self.stopping = False  # and nobody new is taken
        self.fenced = asyncio.Event()  # set once the cluster counts this incarnation as ended
        self.paused = False
        self.early_aborts = EarlyAborts()
        self._rules = RetryRules(settings.max_attempts, settings.pair_wait_s, settings.silence_s)
        self.pulse = Pulse()
        self._timelines = Timelines(self.metrics, self.pulse)
        self._traces = Traces(settings.otlp_traces_endpoint, settings.model_name)
        self.stories = Stories(self._traces.ended)
        self._keys = itertools.count(1)
        self._listeners: dict[int, tuple[Generation, int]] = {}  # by key: whose choice it is
        secret_file = settings.secret_file
        security = None if secret_file is None else Security.from_file(secret_file)
        loop = asyncio.get_running_loop()
        self._crossing: Crossing[tuple[Peer, Message] | DirectoryEvent]
        self._crossing = Crossing(loop, self._take)
        me = own_ref(settings.bind_host, url)
        self._mailbox = Mailbox(me, settings.bind_host, self._on_message, security)
        peer = self._mailbox.peer
        bounds = QueueBounds(settings.max_waiting_requests, settings.max_waiting_tokens)
        self.core = BalancerCore(peer, Members(tokenizer.digest), new_room, bounds)
        mine = registration(peer, settings.model_name, url, self._load)
        self._client = BootstrapClient(settings.bootstrap, peer, security, self._crossing.put, mine)
        self.commands = Commands(self._mailbox.post)
        self.ledgers = LedgerAsks(self._mailbox.post)
        self.attendance = Attendance()
        self._ticker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to hear; raises ConfigError. Workers may come and go from here on."""
        self._client.start()
        self._mailbox.start()
        counts = self.core.strays.counts
        self.metrics.export("messages", "Messages by what became of them", self._mailbox.counters)
        self.metrics.export(
            "dropped_messages",
            "Messages that named no live room, were not for a balancer, or found no place",
            lambda: {
                "room": counts["room"],
                "kind": counts["kind"],
                "full": self._crossing.num_dropped,
            },
        )
        members = self.core.members
        self.metrics.registry.register(EngineMetrics(self.settings.model_name, lambda: members))
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="balancer-tick")

    async def stop(self) -> None:
        """End every request, let the last messages leave, close. Returns within seconds."""
        self.close("the load balancer stops")
        if self._ticker is not None:
            self._ticker.cancel()
        self._crossing.close()
        loop = asyncio.get_running_loop()
        if self._ticker is not None:
            await loop.run_in_executor(None, self._client.stop)
        await loop.run_in_executor(None, self._mailbox.stop)
        self.text.close()
        await loop.run_in_executor(None, self._traces.close)

    # --- the clients' side ---------------------------------------------------------------------

    async def generate(self, ask: Ask) -> Generation:
        """Begin to answer; raises AskRefused, or GenerationFailed when nobody could take it."""
        self._refuse_unwanted(ask)
        stop_ids = await self.text.stop_ids(ask.rules.stops)
        specs = requests_for(ask, await self._pools(), stop_ids)
        self._refuse_unwanted(ask)  # which may have changed in the meantime
        failure = self.core.refusal(specs, self.settings.request_timeout_s)
        if failure is not None:
            self.metrics.requests.labels(failure.kind.value).inc(len(specs))
            raise GenerationFailed(failure)
        return self.submit(specs, ask.rules, self.settings.request_timeout_s)

    def submit(
        self,
        specs: Sequence[RequestSpec],
        rules: TextRules,
        timeout_s: float,
        *,
        counted: bool = True,
    ) -> Generation:
        """Begin requests that are known to fit. Those not `counted` appear in no metric."""
        now = time.monotonic()
        keys = [next(self._keys) for _ in specs]

        def end(index: int, hit: bool) -> None:
            self._end(keys[index], hit)

        decode = partial(self.text.tokenizer.decode, skip_special_tokens=rules.skip_special_tokens)
        texts = [ChoiceText(decode, spec.sampling, rules) for spec in specs]
        stats = [RequestStats(now) for _ in specs]
        generation = Generation(texts, stats, end, self.settings.stream_interval)
        for index, (key, spec) in enumerate(zip(keys, specs, strict=True)):
            self._listeners[key] = generation, index
            if counted:
                self._timelines.began(key, spec, stats[index])
                self.stories.began(key, spec, now)
            self.core.submit(key, Request(spec, self._rules, now + timeout_s, now), now)
        self._carry_out(now)
        return generation

    def turn_away(self, tenant: str, num_bytes: int) -> Failure | None:
        """Why a new call of `tenant` in so many bytes cannot be taken whatever it asks, or None."""
        failure = self.core.refusal_of_any(tenant, num_bytes)
        if failure is not None:
            self.metrics.requests.labels(failure.kind.value).inc()
        return failure

    def _refuse_unwanted(self, ask: Ask) -> None:
        """Raise GenerationFailed for what was aborted before it came, and for all while paused."""
        if self.early_aborts.take(ask.answer_id, time.monotonic()):
            raise GenerationFailed(Failure(FailureKind.CANCELLED, "aborted before it came"))
        if self.paused:
            raise GenerationFailed(Failure(FailureKind.PAUSED, "the server is paused"))

    def abort(self, answer_id: str, detail: str) -> int:
        """End the requests of a call with an error; how many. None is remembered as unwanted."""
        now = time.monotonic()
        keys = self.core.keys_of(answer_id)
        for key in keys:
            self.core.cancel(key, now, detail)
        self._carry_out(now)
        if not keys:
            self.early_aborts.add(answer_id, now)
        return len(keys)

    def abandon(self, detail: str) -> None:
        """End every request with an honest error."""
        now = time.monotonic()
        self.core.abandon_all(detail, now)
        self._carry_out(now)

    def leave(self) -> None:
        """Be unready, and let the cluster know; requests are still taken."""
        self.leaving = True
        self._client.beat()

    def close(self, detail: str) -> None:
        """End every request with an honest error, and take no more."""
        self.leaving = self.stopping = True
        self.abandon(detail)

    def balancers(self) -> tuple[BalancerMember, ...]:
        """All load balancers that are members, this one included."""
        return self._client.balancers()

    def peers(self) -> list[Peer]:
        """All engines that are members."""
        return [member.info.peer for member in self.core.members]

    def unready_reason(self) -> Reason | None:
        """Why a request would fail now, or None when a recent one did not."""
        if self.leaving:
            return Reason("the load balancer stops")
        if self.paused:
            return Reason("an administrator paused the server")
        pools = self.core.members.pools
        unproven = self.readiness.unproven_reason(pools, time.monotonic())
        return self.core.members.unready_reason() or (unproven and Reason(unproven)) or None

    def wire_counts(self) -> dict[str, int]:
        """Messages of this balancer by what became of them, and those that named no live room."""
        strays = {f"stray_{kind}": count for kind, count in self.core.strays.counts.items()}
        return {**self._mailbox.counters(), **strays}

    async def _pools(self) -> Sequence[Pool]:
        """What can serve now; waits a little for somebody who can."""
        deadline_at = time.monotonic() + self.settings.pair_wait_s
        while not self.stopping:
            reason = self.core.members.unready_reason()
            if reason is None:
                return self.core.members.pools
            if time.monotonic() >= deadline_at:
                raise GenerationFailed(Failure(FailureKind.UNAVAILABLE, reason.message))
            await asyncio.sleep(TICK_S)
        raise GenerationFailed(Failure(FailureKind.UNAVAILABLE, "the load balancer stops"))

    def _load(self) -> WorkerLoad:
        """On the client's thread."""
        state = WorkerState.DRAINING if self.leaving else WorkerState.READY
        num_waiting = self.core.num_waiting
        num_running = max(0, self.core.num_requests - num_waiting)
        return WorkerLoad(state, num_waiting, num_running)

    def _end(self, key: int, hit: bool) -> None:
        now = time.monotonic()
        if hit:
            self.core.stop_hit(key, now)
            self._timelines.ended(key, "stop", now)
            self.stories.ended(key, "stop", now)
        else:
            self.core.cancel(key, now)
        self._carry_out(now)
        self._listeners.pop(key, None)

    # --- the workers' side ---------------------------------------------------------------------

    def _on_message(self, sender: Peer, message: Message) -> None:
        """On the mailbox's thread."""
        self._crossing.offer((sender, message))

    def _take(self, items: list[tuple[Peer, Message] | DirectoryEvent]) -> None:
        now = time.monotonic()
        for item in items:
            try:
                if isinstance(item, tuple):
                    self._take_message(*item, now)
                else:
                    self._take_event(item, now)
            except Exception:
                log.exception("a message or event could not be taken")
        self._carry_out(now)

    def _take_message(self, sender: Peer, message: Message, now: float) -> None:
        if isinstance(message, CommandAnswered):
            self.commands.answered(sender, message)
        elif isinstance(message, LedgerReport):
            self.ledgers.answered(sender, message)
        else:
            self.core.receive(sender, message, now)

    def _take_event(self, event: DirectoryEvent, now: float) -> None:
        if isinstance(event, LoadsChanged):
            pools = self.core.members.pools
            self.core.loads(event.loads, now)
            if (
                self.core.members.pools is not pools
            ):  # somebody drains: other pairs must prove themselves
                self.members_changed.set()
            return
        if isinstance(event, Joined):
            log.info("%s joined as %s", event.member.info.peer.ref, event.member.info.role.value)
            self.core.joined(event.member, now)
            self.attendance.joined(event.member.info.peer.ref, event.member.info.role)
        elif isinstance(event, BalancerJoined):
            log.info("%s joined as balancer", event.member.info.peer.ref)
            self.attendance.joined(event.member.info.peer.ref, Role.BALANCER)
        elif isinstance(event, Fenced):
            log.error("the cluster counts this load balancer as ended: %s", event.reason.value)
            self.close("the cluster counts this load balancer as ended")
            self.fenced.set()
        elif isinstance(event, Left):
            log.warning("%s left: %s", event.ref, event.reason.value)
            in_order = event.reason is LeaveReason.UNREGISTERED
            self.core.left(event.ref, event.reason.value, now, in_order=in_order)
            self.commands.left(event.ref)
            self.ledgers.left(event.ref, event.reason.value)
            self.attendance.left(event, now)
            if event.dead:
                self._mailbox.forget(event.endpoint)
        self.core.occupancy.others.see(len(self.balancers()) > 1)
        self.readiness.keep_only(self.core.members.refs)
        self.members_changed.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            try:
                self.core.tick(now)
                self._carry_out(now)
            except Exception:
                log.exception("a tick failed")
            self.metrics.running.set(self.core.num_requests - self.core.num_waiting)
            self.metrics.waiting.set(self.core.num_waiting)
            self.metrics.ready.set(self.unready_reason() is None)

    # --- what the core decided -----------------------------------------------------------------

    def _carry_out(self, now: float) -> None:
        for what in self.core.drain():
            if isinstance(what, Post):
                self._mailbox.post(what.peer, what.message)
            else:
                self._tell(what, now)

    def _tell(self, news: News, now: float) -> None:
        key, what = news.key, news.what
        note(news, is_probe=key not in self._timelines)
        self.stories.told(news, now)
        if isinstance(what, Deliver):
            self._timelines.tokens(key, len(what.token_ids), now)
            attempt = news.request.attempt
            if attempt is not None and attempt.decode_spoke:
                self.readiness.served(attempt.pair.refs, now)
            if what.finish is not None:
                self._timelines.ended(key, what.finish.value, now)
        elif isinstance(what, Fail):
            self._timelines.ended(key, what.failure.kind.value, now)
        elif isinstance(what, EndAttempt):
            if what.attempt.decode_spoke and what.reason is FailureReason.FINISHED:
                self.readiness.served(what.attempt.pair.refs, now)
        elif isinstance(what, Measured):
            self._timelines.measured(key, what)
        elif isinstance(what, Retry):
            self._timelines.retried(key, what.reason.value)
        elif isinstance(what, Dispatch):
            prefill, decode = what.attempt.pair.refs
            self._timelines.dispatched(key, prefill.worker_id, decode.worker_id)
        if isinstance(what, Deliver | Fail):
            generation, index = self._listeners[key]
            if isinstance(what, Fail) or what.finish is not None:
                del self._listeners[key]
            generation.put(index, what)

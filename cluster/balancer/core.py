"""The balancer's pure core: every live request, its room, and who is asked to do what.

Messages, members, clients' wishes and the time go in; messages to workers and news for clients come
out. It draws no random bits and reads no clock, so a simulator runs the same code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.liveness import SILENCE_S, Liveness
from bootstrap.membership import Member, WorkerLoad
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    LegFailed,
    LegProgress,
    Message,
    Ping,
    Pong,
    RoomTokens,
    TokenBatch,
    WriterStopped,
)
from cluster.balancer.admission import Admission
from cluster.balancer.attempt import Attempt
from cluster.balancer.dispatches import dispatches
from cluster.balancer.instructions import (
    Deliver,
    Dispatch,
    EndAttempt,
    Fail,
    Failure,
    Instruction,
    Measured,
    Retry,
)
from cluster.balancer.members import Members
from cluster.balancer.occupancy import Occupancy
from cluster.balancer.placing import PlacingRound, is_large
from cluster.balancer.policy import NoPair, Pair
from cluster.balancer.queue import QueueBounds
from cluster.balancer.request import GONE, Request, RequestSpec
from cluster.balancer.strays import Strays


@dataclass(frozen=True, slots=True)
class Post:
    """Send `message` to `peer`."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class News:
    """Something happened to the request `key`; the client's side and the log want to know."""

    key: int
    request: Request
    what: Dispatch | Deliver | Measured | Fail | Retry | EndAttempt


DEFAULT_BOUNDS = QueueBounds(max_requests=1024, max_tokens=1 << 20)


class BalancerCore:
    """Every room belongs to one live request; a request that ended has none and is forgotten.

    After each event no worker that takes more could be given a request that waits.
    """

    def __init__(
        self,
        me: Peer,
        members: Members,
        mint_room: Callable[[], bytes],
        bounds: QueueBounds = DEFAULT_BOUNDS,
    ) -> None:
        self.me = me
        self._mint_room = mint_room
        self.members = members
        self.strays = Strays()
        self._liveness = Liveness()
        self.occupancy = Occupancy()
        self.admission = Admission(bounds)
        self._requests: dict[int, Request] = {}
        self._rooms: dict[bytes, int] = {}
        self._rooms_of: dict[WorkerRef, set[bytes]] = {}
        self._freed = False  # a worker may take more than at the last look
        self._out: list[Post | News] = []

    def drain(self) -> list[Post | News]:
        """Instructions since the last call, in order."""
        out, self._out = self._out, []
        return out

    @property
    def num_requests(self) -> int:
        """Requests without an outcome."""
        return len(self._requests)

    @property
    def num_waiting(self) -> int:
        """Those of them that no worker has."""
        return len(self.admission.queue)

    # --- the clients' side ---------------------------------------------------------------------

    def refusal(self, specs: Sequence[RequestSpec], timeout_s: float) -> Failure | None:
        """Why a call of these requests must come again later, or None. It takes on nothing."""
        if len(specs) == 1 and isinstance(self._new_round().find(specs[0].size, {}), Pair):
            return None
        return self.admission.refusal(specs, timeout_s)

    def refusal_of_any(self, tenant: str, num_bytes: int) -> Failure | None:
        """Why no call of `tenant` in so many bytes can be taken now, or None; a token has a byte."""
        placing = self._new_round()
        may_be_large = is_large(num_bytes, self.members.pools)
        if placing.is_open(False) or (may_be_large and placing.is_open(True)):
            return None
        return self.admission.refusal_of_any(tenant)

    def submit(self, key: int, request: Request, now: float) -> None:
        """Take on a request under a new `key`; whether to was asked of `refusal`."""
        self._requests[key] = request
        prompt_is_large = is_large(request.size.num_prompt, self.members.pools)
        self.admission.add(key, request.spec, is_large=prompt_is_large)
        self._freed = True
        self._settle(now)
        self._ask_why(key, now)

    def requests(self) -> list[Request]:
        """Requests without an outcome, oldest first; for a look."""
        return list(self._requests.values())

    def keys_of(self, answer_id: str) -> list[int]:
        """The live requests of a client's call."""
        return [key for key, r in self._requests.items() if r.spec.answer_id == answer_id]

    def cancel(self, key: int, now: float, detail: str = GONE) -> None:
        """The client went away, or the rest of its answer is void. Ended ones: no-op."""
        request = self._requests.get(key)
        if request is not None:
            self._carry_out(key, request, request.cancel(detail), now)
            self._settle(now)

    def stop_hit(self, key: int, now: float) -> None:
        """The client's text is complete. Ended ones: no-op."""
        request = self._requests.get(key)
        if request is not None:
            self._carry_out(key, request, request.stop_hit(), now)
            self._settle(now)

    def abandon_all(self, detail: str, now: float) -> None:
        """The balancer stops: every request ends with an honest error."""
        for key, request in list(self._requests.items()):
            self._carry_out(key, request, request.abandon(detail), now)
        self._settle(now)

    # --- the workers' side ---------------------------------------------------------------------

    def receive(self, sender: Peer, message: Message, now: float) -> None:
        """A worker's message; what names no live room of that worker is counted and dropped."""
        if isinstance(message, TokenBatch):
            for tokens in message.rooms:
                self._tokens(sender, tokens, now)
        elif isinstance(message, LegFailed):
            self._leg_failed(sender, message, now)
        elif isinstance(message, LegProgress):
            self._progress(sender, message, now)
        elif isinstance(message, Pong):
            self._answered(sender.ref, now)
        elif not isinstance(message, WriterStopped):  # which only says that an abort arrived
            self.strays.count("kind")
        self._settle(now)

    def joined(self, member: Member, now: float) -> None:
        """A worker registered."""
        self.members.joined(member)
        self._reconsider(now)

    def left(self, ref: WorkerRef, detail: str, now: float, *, in_order: bool = False) -> None:
        """A worker's incarnation is gone; `in_order` when it said goodbye after its last word."""
        self.members.left(ref)
        self.occupancy.others.forget(ref)
        self._liveness.forget(ref)
        for room in list(self._rooms_of.get(ref, ())):
            key = self._rooms.get(room)
            if key is not None:
                request = self._requests[key]
                lost = request.worker_lost(ref, detail, now, in_order=in_order)
                self._carry_out(key, request, lost, now)
        self._reconsider(now)

    def loads(self, loads: tuple[tuple[WorkerRef, WorkerLoad], ...], now: float) -> None:
        """Workers' newer loads."""
        pools = self.members.pools
        for ref, load in loads:
            self.members.load(ref, load)
        self.occupancy.heard(loads)
        if self.members.pools is not pools:
            self._reconsider(now)

    def tick(self, now: float) -> None:
        """Let time pass; a few times a second."""
        for key, request in list(self._requests.items()):
            self._carry_out(key, request, request.tick(now), now)
        self._look_for_the_silent(now)
        self._freed = self.occupancy.pass_time(now) or self._freed
        self._settle(now)

    # --- inner ---------------------------------------------------------------------------------

    def _find(self, sender: Peer, room: bytes) -> tuple[int, Request] | None:
        key = self._rooms.get(room)
        if key is None:
            return None
        request = self._requests[key]
        attempt = request.attempt
        if attempt is None or attempt.leg_of(sender.ref) is None:
            return None
        return key, request

    def _look_for_the_silent(self, now: float) -> None:
        attempts = [r.attempt for r in self._requests.values() if r.attempt is not None]
        awaited = (leg.peer for attempt in attempts for leg in attempt.legs if not leg.over)
        asks, lost = self._liveness.look(awaited, now)
        self._out.extend(Post(peer, Ping()) for peer in asks)
        self.members.cannot_reach(self._liveness.lost)
        rooms = [(ref, room) for ref in lost for room in self._rooms_of.get(ref, ())]
        for ref, room in rooms:
            if room in self._rooms:
                key, detail = self._rooms[room], f"no answer for {SILENCE_S:g} s"
                request = self._requests[key]
                self._carry_out(key, request, request.worker_lost(ref, detail, now), now)
        if lost:
            self._reconsider(now)

    def _answered(self, ref: WorkerRef, now: float) -> None:
        if self._liveness.answered(ref, now):
            self.members.cannot_reach(self._liveness.lost)
            self._reconsider(now)

    def _leg_failed(self, sender: Peer, message: LegFailed, now: float) -> None:
        found = self._find(sender, message.room)
        if found is None:
            self.strays.count("room")
            return
        key, request = found
        if message.reason is FailureReason.QUEUE_FULL:
            self.occupancy.refused(sender.ref, now)
        failed = request.leg_failed(sender.ref, message.reason, message.detail, now)
        self._carry_out(key, request, failed, now)

    def _tokens(self, sender: Peer, tokens: RoomTokens, now: float) -> None:
        found = self._find(sender, tokens.room)
        if found is None:
            self._stray(sender, tokens.room, now, over=tokens.finish is not None)
            return
        key, request = found
        attempt = request.attempt
        is_prefill = attempt is not None and sender.ref == attempt.prefill.peer.ref
        if is_prefill:
            self.admission.num_done += self.occupancy.prompt_computed(tokens.room, sender.ref)
            self._freed = True
        if tokens.stats is not None:
            role = Role.PREFILL if is_prefill else Role.DECODE
            self._out.append(News(key, request, Measured(role, tokens.stats)))
        self._carry_out(key, request, request.tokens(sender.ref, tokens, now), now)

    def _progress(self, sender: Peer, message: LegProgress, now: float) -> None:
        for room in message.stages:
            if self._find(sender, room) is None:
                self._stray(sender, room, now, over=False)
        for room in list(self._rooms_of.get(sender.ref, ())):
            key = self._rooms.get(room)
            if key is not None:
                request = self._requests[key]
                named = room in message.stages
                self._carry_out(
                    key, request, request.progress(sender.ref, named=named, now=now), now
                )

    def _stray(self, sender: Peer, room: bytes, now: float, *, over: bool) -> None:
        """A worker works for nobody: tell it so, unless that was its last word."""
        self.strays.count("room")
        if not over and self.strays.may_answer(room, now):
            self._out.append(Post(sender, AbortRoom(room, FailureReason.CANCELLED)))

    # --- who goes where ------------------------------------------------------------------------

    def _new_round(self) -> PlacingRound:
        return PlacingRound(self.members.pools, self.occupancy)

    def _settle(self, now: float) -> None:
        """Give workers what they take, and note what was done since the last event."""
        if self._freed and self.num_waiting:
            placing = self._new_round()
            queue = self.admission.queue
            queue.serve(lambda key: self._place(key, placing, now), placing.is_open)
        self._freed = False
        self.admission.measure(now, can_serve=bool(self.members.pools))

    def _place(self, key: int, placing: PlacingRound, now: float) -> bool:
        request = self._requests[key]
        found = placing.find(request.size, request.blamed, request.prefers)
        if not isinstance(found, Pair):
            return False
        self._carry_out(key, request, request.dispatch(found, self._mint_room(), now), now)
        return True

    def _reconsider(self, now: float) -> None:
        """Who is there has changed, and with it what is worth waiting for."""
        self._freed = True
        self._settle(now)
        for key in self.admission.queue.waiting():
            self._ask_why(key, now)

    def _ask_why(self, key: int, now: float) -> None:
        """Whether a request waits for its turn, or for somebody who could take it at all."""
        request = self._requests.get(key)
        if request is not None and request.attempt is None:
            found = self._new_round().find(request.size, request.blamed)
            request.wait(for_turn=not (isinstance(found, NoPair) and not found.saturated), now=now)

    def _carry_out(
        self, key: int, request: Request, instructions: list[Instruction], now: float
    ) -> None:
        for what in instructions:
            if isinstance(what, Dispatch):
                self._dispatch(key, request, what.attempt, now)
            elif isinstance(what, EndAttempt):
                self._end_attempt(what)
            elif isinstance(what, Deliver):
                self.admission.num_done += len(what.token_ids)
            self._out.append(News(key, request, what))
        if request.ended:
            self._requests.pop(key, None)
            self.admission.end(key, request)
        elif instructions and isinstance(instructions[-1], Retry):
            self.admission.queue.come_back(key)
            self._freed = True
            self._settle(now)
            self._ask_why(key, now)

    def _dispatch(self, key: int, request: Request, attempt: Attempt, now: float) -> None:
        self._rooms[attempt.room] = key
        num_expected = self.admission.num_expected(request)
        self.occupancy.begin(attempt, request.size, num_expected)
        for ref in attempt.refs:
            self._rooms_of.setdefault(ref, set()).add(attempt.room)
        posts = dispatches(self.me, request, attempt, now)
        self._out.extend(Post(peer, message) for peer, message in posts)

    def _end_attempt(self, end: EndAttempt) -> None:
        room = end.attempt.room
        self.occupancy.end(room)
        self._freed = True
        del self._rooms[room]
        for ref in end.attempt.refs:
            rooms = self._rooms_of[ref]
            rooms.discard(room)
            if not rooms:
                del self._rooms_of[ref]
        for peer in end.aborts:
            self._out.append(Post(peer, AbortRoom(room, end.reason)))

    def validate(self) -> None:
        """Assert what must hold between events."""
        rooms = {r.attempt.room: k for k, r in self._requests.items() if r.attempt is not None}
        assert rooms == self._rooms, "rooms and attempts disagree"
        assert self.occupancy.rooms() == rooms.keys(), "occupied by what does not run"
        self.occupancy.validate()
        self.admission.queue.validate()
        waiting = {k for k, r in self._requests.items() if r.attempt is None}
        assert set(self.admission.queue.waiting()) == waiting
        for key in waiting:
            request = self._requests[key]
            found = self._new_round().find(request.size, request.blamed)
            assert isinstance(found, NoPair), "a worker idles while a request waits for it"
        for ref, held in self._rooms_of.items():
            assert held == {r for r, k in rooms.items() if ref in _refs(self._requests[k])}
        assert not any(request.ended for request in self._requests.values())


def _refs(request: Request) -> tuple[WorkerRef, ...]:
    return () if request.attempt is None else request.attempt.refs

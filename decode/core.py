"""The decode engine's pure core: messages in, tokens and instructions out.

A room waits here for its prefill engine to start, is given pages, receives its KV, and decodes. Only a
handoff record that agrees with the dispatch makes received bytes valid. `DecodeScheduler` owns pages and
the batch; this file owns the rooms and what their peers are told.
"""

from collections.abc import Collection, Iterator, Sequence

from bootstrap.identity import Peer, WorkerRef
from bootstrap.membership import WorkerInfo, WorkerLoad, WorkerState
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    FailureReason,
    HandoffAccepted,
    HandoffRecord,
    LegFailed,
    Pong,
    PrefillStarted,
    RoomTokens,
    Stage,
    TokenBatch,
    WriterStopped,
)
from bootstrap.recent_rooms import RecentRooms
from decode.dispatch import refusal_of
from decode.handoff import Accepted, HandoffChecks, Rejected
from decode.inbound import Inbound
from decode.inspection import DecodeRooms
from decode.instructions import DropSwap, HandoffVerified, InboundClosed, TearDown, TornDown
from decode.output import room_tokens
from decode.partners import Partners
from decode.request import NEEDS_PREFILL, STAGES, DecodeRequest, DecodeState
from decode.scheduler import DecodeScheduler
from engine.balancers import Balancers
from engine.commands import EngineCommands
from engine.core import (
    CompileGrammar,
    GrammarCompiled,
    PeerJoined,
    PeerLeft,
    Post,
    Received,
    StepPlan,
    StepResult,
    SwapIn,
)
from engine.inspection import Inspection
from engine.limits import EngineLimits
from engine.reports import ProgressReports
from engine.step import RowFault, SampledToken

_S = DecodeState


class DecodeCore:
    """Every room that was dispatched here gets its last token or one LegFailed, then is forgotten."""

    def __init__(self, limits: EngineLimits) -> None:
        self.scheduler = DecodeScheduler(limits)
        self.inbound = Inbound(self.scheduler.ledger)
        self.quarantine = self.inbound.quarantine
        self._limits = limits
        self._rooms: dict[bytes, DecodeRequest] = {}
        self._tombstones = RecentRooms()
        self._partners = Partners()
        self._balancers = Balancers()
        self._checks = HandoffChecks(limits.vocab_size)
        self._out: list[object] = []
        self._reports = ProgressReports()
        self._draining = False
        ledger = self.scheduler.ledger
        self._commands = EngineCommands(ledger, self._num_rooms, self._end_rooms)
        is_known = self._partners.is_known
        rooms = DecodeRooms(self._rooms, self.scheduler, self.quarantine, limits, is_known)
        self._inspection = Inspection(ledger, rooms)

    # --- the loop's side -----------------------------------------------------------------------

    def drain(self) -> list[object]:
        """Instructions since the last call, in order."""
        out, self._out = self._out, []
        return out

    def handle(self, event: object, now: float) -> None:
        """Take one event; what is unknown or late changes nothing."""
        self._end_rooms_of(self._balancers.handle(event, now), now)
        self._out.extend(self._commands.handle(event, now))
        self._out.extend(self._inspection.handle(event, now))
        if isinstance(event, Received):
            self._received(event.sender, event.message, now)
        elif isinstance(event, PeerJoined):
            self._prefill_joined(event.info)
        elif isinstance(event, PeerLeft):
            self._peer_left(event, now)
        elif isinstance(event, GrammarCompiled):
            self._grammar_compiled(event, now)
        elif isinstance(event, HandoffVerified):
            self._handoff(event.sender, event.record, event.bad_blocks, now)
        elif isinstance(event, TornDown):
            self.inbound.torn_down(event, now)

    def tick(self, now: float) -> None:
        """Deadlines, quarantines, and once a second a word to each balancer about its rooms."""
        for request in list(self._rooms.values()):
            if now >= request.deadline_at:
                self._fail(request, FailureReason.DEADLINE, "deadline passed in decode", now)
        asks, cut_off = self._partners.look(self._rooms.values(), now)
        self._out.extend(asks)
        for request in cut_off:
            detail = f"prefill engine {request.dispatch.prefill.ref} does not answer"
            self._fail(request, FailureReason.PEER_LOST, detail, now)
        self._end_rooms_of(self._balancers.unheard(now), now)
        self._out.extend(self.inbound.tick(now))
        self._out.extend(self._commands.tick(now))
        self._inspection.tick(now)
        self._out.extend(self._reports.due(self._held_rooms(), now))

    def plan(self, now: float) -> StepPlan | None:
        """One token for every running request; the newly admitted get their manifests."""
        plan, admitted = self.scheduler.plan(now)
        for request in admitted:
            self._out.extend(self.inbound.open(request))
        return plan

    def complete(self, plan: StepPlan, results: Sequence[StepResult], now: float) -> None:
        """The step ran: one message per balancer with all its rooms' tokens."""
        batches: dict[Peer, list[RoomTokens]] = {}
        for room, result in zip(plan.rooms, results, strict=True):
            request = self._rooms[room]
            if isinstance(result, RowFault):
                self._fail(request, result.reason, result.detail, now)
            elif isinstance(result, SampledToken):
                tokens = self._sampled(request, result, now)
                if tokens is None:
                    continue
                batches.setdefault(request.dispatch.reply_to, []).append(tokens)
        self._out.extend(Post(peer, TokenBatch(tuple(rooms))) for peer, rooms in batches.items())

    def step_failed(self, plan: StepPlan, detail: str, now: float) -> None:
        """The step raised: its rooms end, the others go on.

        Nobody knows how far it came, so those whose bytes it was to move end too.
        """
        for room in dict.fromkeys((*plan.rooms, *(swap.room for swap in plan.swaps))):
            self._fail(self._rooms[room], FailureReason.INTERNAL, detail, now)
        self._out.extend(DropSwap(s.room) for s in plan.swaps if isinstance(s, SwapIn))

    def take_no_more(self) -> None:
        """Refuse new rooms; those that are here go on."""
        self._draining = True

    @property
    def idle(self) -> bool:
        """Whether no room is here and no writer may still write for one that ended."""
        return not self._rooms and self.inbound.idle

    def shut_down(self, now: float) -> None:
        """Refuse new rooms and fail those that are here."""
        self.take_no_more()
        self._end_rooms("the decode engine shuts down", now)

    def _num_rooms(self) -> int:
        return len(self._rooms)

    def _end_rooms(self, detail: str, now: float) -> None:
        for request in list(self._rooms.values()):
            self._fail(request, FailureReason.DRAINING, detail, now)

    def _end_rooms_of(self, balancers: Collection[WorkerRef], now: float) -> None:
        """Nobody reads their answers any more; a balancer that lives all the same begins anew."""
        for request in [r for r in self._rooms.values() if r.dispatch.reply_to.ref in balancers]:
            self._fail(request, FailureReason.BALANCER_LOST, "its balancer is gone", now)

    def load(self) -> WorkerLoad:
        """Queue, running and pages, for the heartbeat."""
        return WorkerLoad(
            state=WorkerState.DRAINING if self._draining else WorkerState.READY,
            num_queued=len(self._rooms) - len(self.scheduler.running),
            num_running=len(self.scheduler.running),
            num_rooms=len(self._rooms),
            pages=self.scheduler.ledger.counts(),
            counters={
                "retractions": self.scheduler.num_retractions,
                "orphan_pages": self._inspection.num_orphan_pages,
                "balancers_lost": self._balancers.num_lost,
                **self._checks.counters(),
            },
        )

    # --- messages ------------------------------------------------------------------------------

    def _received(self, sender: Peer, message: object, now: float) -> None:
        if isinstance(message, DecodeDispatch):
            self._accept(message, now)
        elif isinstance(message, PrefillStarted):
            self._prefill_started(sender, message, now)
        elif isinstance(message, HandoffRecord):
            self._handoff(sender, message, None, now)
        elif isinstance(message, AbortRoom):
            self._aborted(sender, message, now)
        elif isinstance(message, WriterStopped):
            self._writer_stopped(sender, message, now)
        elif isinstance(message, Pong):
            self._partners.answered(sender.ref, now)

    def _accept(self, dispatch: DecodeDispatch, now: float) -> None:
        self._reports.expect(dispatch.reply_to, now)
        if dispatch.room in self._tombstones or dispatch.room in self._rooms:
            return
        refusal = self._refusal(dispatch)
        if refusal is not None:
            self._tombstones.add(dispatch.room, now)
            self._tell_failure(dispatch, *refusal)
            return
        token_ids = list(dispatch.prompt_token_ids)
        request = DecodeRequest(dispatch, now, token_ids, self.scheduler.hasher.hashes(token_ids))
        self._rooms[request.room] = request
        if dispatch.sampling.grammar is not None:
            self._out.append(CompileGrammar(request.room, dispatch.sampling.grammar))
        self._start_if_ready(request)

    def _grammar_compiled(self, event: GrammarCompiled, now: float) -> None:
        request = self._rooms.get(event.room)
        if request is None:
            return
        if event.problem is not None:
            self._fail(request, event.reason, event.problem, now)
            return
        request.grammar = event.grammar
        if request.state is _S.EXPECTED:
            self._start_if_ready(request)

    def _refusal(self, dispatch: DecodeDispatch) -> tuple[FailureReason, str] | None:
        if self._draining or self._commands.holding:
            return FailureReason.DRAINING, "the decode engine takes no new rooms"
        if len(self._rooms) - len(self.scheduler.running) >= self._limits.max_queue:
            return FailureReason.QUEUE_FULL, f"{self._limits.max_queue} requests wait already"
        if self._balancers.is_dead(dispatch.reply_to.ref):
            return FailureReason.BALANCER_LOST, f"balancer {dispatch.reply_to.ref} is gone"
        if self._partners.is_gone(dispatch.prefill.ref):  # it left while the dispatch came
            return FailureReason.PEER_LOST, f"prefill engine {dispatch.prefill.ref} is gone"
        return refusal_of(dispatch, self._limits)

    def _prefill_started(self, sender: Peer, message: PrefillStarted, now: float) -> None:
        request = self._rooms.get(message.room)
        if message.room in self._tombstones:
            return
        if request is None:
            self._partners.started(message.room, now)
        elif sender.ref != request.dispatch.prefill.ref:
            return
        elif request.state is _S.EXPECTED:
            self._partners.started(message.room, now)
            self._start_if_ready(request)
        elif request.state is _S.RECEIVING:  # it asks again: the manifest was lost
            self._out.append(Post(sender, self.inbound.manifest(request)))

    def _start_if_ready(self, request: DecodeRequest) -> None:
        """Pages are promised only to a writer whose death would be told us.

        A room without its grammar takes none: it could not decode.
        """
        known = self._partners.is_known(request.dispatch.prefill.ref)
        if known and not request.waits_for_grammar and self._partners.take_start(request.room):
            self.scheduler.started(request)

    def _handoff(
        self, sender: Peer, record: HandoffRecord, bad: tuple[int, ...] | None, now: float
    ) -> None:
        """The record is the only thing that makes the room's pages valid."""
        request = self._rooms.get(record.room)
        if request is not None and request.state is _S.RECEIVING:
            if sender.ref != request.dispatch.prefill.ref or record.epoch != request.epoch:
                return
            verdict = self._checks.judge(request, record, bad)
            if isinstance(verdict, Rejected):
                self._fail(request, FailureReason.HANDOFF_REJECTED, verdict.detail, now)
                return
            if not isinstance(verdict, Accepted):
                self._out.append(Post(sender, verdict))
                return
            self.scheduler.commit(request, record.token_id, now)
            request.record, request.token_at = record, now
            self._out.append(InboundClosed(record.room))
        elif request is None:
            self._out.extend(self.inbound.record_came_late(sender, record, bool(bad), now))
        # Committed before, or ended: either way nothing more is needed of the sender.
        self._out.append(Post(sender, HandoffAccepted(record.room, record.epoch)))

    def _aborted(self, sender: Peer, message: AbortRoom, now: float) -> None:
        request = self._rooms.get(message.room)
        if request is None:
            self._tombstones.add(message.room, now)
        elif sender.ref == request.dispatch.reply_to.ref:
            self._end(request, now)
            self._tell_prefill(request.dispatch, message.reason)
        elif sender.ref == request.dispatch.prefill.ref and request.state in NEEDS_PREFILL:
            if message.reason is FailureReason.FINISHED:
                self._end(request, now)
            else:
                self._fail(request, FailureReason.PEER_ABORTED, message.reason.value, now)

    def _prefill_joined(self, info: WorkerInfo) -> None:
        self._partners.joined(info)
        for request in list(self._rooms.values()):
            if request.state is _S.EXPECTED:
                self._start_if_ready(request)

    def _peer_left(self, event: PeerLeft, now: float) -> None:
        info = self._partners.left(event.ref, event.dead)
        for request in list(self._rooms.values()):
            if request.dispatch.prefill.ref == event.ref and request.state in NEEDS_PREFILL:
                detail = f"prefill engine {event.ref} is gone"
                self._fail(request, FailureReason.PEER_LOST, detail, now)
        if info is not None:
            self._out.append(TearDown(info.peer, info.transfer.agent_name))

    def _writer_stopped(self, sender: Peer, message: WriterStopped, now: float) -> None:
        """Only the writer itself is believed."""
        request = self._rooms.get(message.room)
        if request is None:
            believed = self.inbound.is_writer(sender, message.room)
        else:
            believed = sender.ref == request.dispatch.prefill.ref
        if not believed:
            return
        receives = request is not None and request.state is _S.RECEIVING
        if request is not None and receives and (message.cut or request.num_resends):
            detail = "a write was cut short" if message.cut else "its writer stopped"
            self._fail(request, FailureReason.TRANSFER_FAILED, detail, now)  # the pages settle
        self._out.extend(self.inbound.writer_stopped(message, now))

    # --- steps and ends ------------------------------------------------------------------------

    def _sampled(
        self, request: DecodeRequest, token: SampledToken, now: float
    ) -> RoomTokens | None:
        """What the balancer gets; None for a token that cannot be."""
        if token.token_id >= self._limits.vocab_size:
            detail = f"token id {token.token_id} beyond vocabulary {self._limits.vocab_size}"
            self._fail(request, FailureReason.NUMERICAL, detail, now)
            return None
        position = request.next_position
        self.scheduler.append(request, token.token_id)
        tokens = room_tokens(request, token, position, now)
        if tokens.finish is not None:
            self._end(request, now)
        return tokens

    def _fail(self, request: DecodeRequest, reason: FailureReason, detail: str, now: float) -> None:
        needs_prefill = request.state in NEEDS_PREFILL
        self._end(request, now)
        dispatch = request.dispatch
        self._out.append(Post(dispatch.reply_to, LegFailed(dispatch.room, reason, detail[:1024])))
        if needs_prefill:
            self._tell_prefill(dispatch, FailureReason.PEER_ABORTED)

    def _tell_failure(self, dispatch: DecodeDispatch, reason: FailureReason, detail: str) -> None:
        self._out.append(Post(dispatch.reply_to, LegFailed(dispatch.room, reason, detail[:1024])))
        self._tell_prefill(dispatch, FailureReason.PEER_ABORTED)

    def _tell_prefill(self, dispatch: DecodeDispatch, reason: FailureReason) -> None:
        self._out.append(Post(dispatch.prefill, AbortRoom(dispatch.room, reason)))

    def _end(self, request: DecodeRequest, now: float) -> None:
        """End a request wherever it stands; exposed pages stay back until the writer stopped."""
        room = request.room
        was = request.state
        del self._rooms[room]
        self._tombstones.add(room, now)
        exposed = self.scheduler.remove(request)
        if was is _S.RECEIVING:
            self._out.extend(self.inbound.ended(request, exposed, now))
        if was is _S.RETRACTED:
            self._out.append(DropSwap(room))

    def _held_rooms(self) -> Iterator[tuple[Peer, bytes, Stage]]:
        return ((r.dispatch.reply_to, r.room, STAGES[r.state]) for r in self._rooms.values())

    def validate(self) -> None:
        """Raise where rooms, scheduler and quarantine disagree."""
        self.scheduler.validate()
        scheduler = self.scheduler
        groups = (scheduler.admitting, scheduler.receiving, scheduler.running, scheduler.retracted)
        expected = {r for r, q in self._rooms.items() if q.state is _S.EXPECTED}
        assert expected.union(*groups) == set(self._rooms)
        holding = {*scheduler.receiving, *scheduler.running, *self.quarantine.rooms()}
        assert holding == set(scheduler.ledger.rooms())

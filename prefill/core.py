"""The prefill engine's pure core: which prompts compute next, and what each outcome sets off.

Prompts compute in chunks under a token budget, the oldest first. While the oldest has more to compute
than one step, up to half of each goes to prompts that have less, so a short one need not wait for a long
one to end. The oldest always gets the other half and goes on, and everybody becomes the oldest. A queued
prompt begins when it gets its first chunk.

A request takes the pages of its whole prompt at once and tells its decode engine only then, so pages are
always taken here before they are taken there. Whoever holds pages here needs no more of them, and whoever
holds pages there waits for none here: the two pools cannot wait for each other in a circle, in whatever
order prompts begin. Finished prompts keep their pages until they are handed off: when decode engines are
slow, no pages are left here and the queue waits.
"""

from collections.abc import Collection, Iterator, Sequence

from bootstrap.identity import Peer, WorkerRef
from bootstrap.membership import WorkerLoad, WorkerState
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    LegFailed,
    PrefillDispatch,
    PrefillStarted,
    Stage,
    TokenBatch,
    WriterStopped,
)
from bootstrap.recent_rooms import RecentRooms
from engine.balancers import Balancers
from engine.commands import EngineCommands
from engine.core import CompileGrammar, GrammarCompiled, Post, Received, StepPlan, StepResult
from engine.inspection import Inspection
from engine.limits import EngineLimits
from engine.reports import ProgressReports
from engine.step import RowFault, SampledToken, ScoredPrompt
from kv_transfer.ledger import PageLedger
from kv_transfer.prefix import BlockHasher
from prefill.bootstrap_token import finish_of, record_of, room_tokens
from prefill.chunks import StepDraft
from prefill.dispatch import refusal_of
from prefill.handoffs import (
    BlocksComputed,
    EndTransfer,
    OpenTransfer,
    PassTime,
    PromptComputed,
    TransferClosed,
    TransferFailed,
)
from prefill.inspection import PrefillRooms
from prefill.queue import PrefillQueue
from prefill.request import STAGES, PrefillEvent, PrefillRequest, PrefillState

_S, _E = PrefillState, PrefillEvent


class PrefillCore:
    """Every room that was dispatched here gets its token 0 or one LegFailed, then is forgotten."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.ledger = PageLedger(limits.num_blocks)
        self._hasher = BlockHasher(limits.block_size)
        self._rooms: dict[bytes, PrefillRequest] = {}
        self._queue = PrefillQueue()
        self._computing: dict[bytes, PrefillRequest] = {}  # in order of start
        self._tombstones = RecentRooms()
        self._out: list[object] = []
        self._reports = ProgressReports()
        self._balancers = Balancers()
        self._draining = False
        self._num_resent = 0  # blocks that arrived damaged the first time
        self._commands = EngineCommands(self.ledger, self._num_rooms, self._end_rooms)
        rooms = PrefillRooms(self._rooms, self._queue, self._computing, self.ledger, limits)
        self._inspection = Inspection(self.ledger, rooms)

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
            message = event.message
            if isinstance(message, PrefillDispatch):
                self._accept(message, now)
            elif isinstance(message, AbortRoom):
                self._aborted(event.sender, message, now)
        elif isinstance(event, TransferClosed):
            self._transfer_closed(event, now)
        elif isinstance(event, TransferFailed):
            self._fail(event.room, event.reason, event.detail, now)
        elif isinstance(event, GrammarCompiled):
            self._grammar_compiled(event, now)

    def tick(self, now: float) -> None:
        """Deadlines, and once a second a word to each balancer about its rooms."""
        for request in list(self._rooms.values()):
            if now >= request.deadline_at and request.state is not _S.CLOSING:
                self._fail(request.room, FailureReason.DEADLINE, "deadline passed in prefill", now)
        self._end_rooms_of(self._balancers.unheard(now), now)
        self.ledger.end_keeping(now)
        self._out.append(PassTime(now))
        self._out.extend(self._commands.tick(now))
        self._inspection.tick(now)
        self._out.extend(self._reports.due(self._held_rooms(), now))

    def plan(self, now: float) -> StepPlan | None:
        """A step's chunks: of the oldest prompt, and of shorter ones that need not wait for it."""
        draft = StepDraft(self._limits.max_num_batched_tokens)
        running = list(self._computing.values())
        oldest = next((r for r in running if r.num_computable), None)
        if oldest is None:
            oldest = next((r for r in self._queue.ahead() if self._start(r, now)), None)
        if oldest is not None:
            if oldest.num_computable > draft.num_left:
                self._add_shorter(oldest, running, draft, now)
            draft.add(oldest)
        for request in running:
            draft.add(request)
        for request in self._queue.ahead():
            if draft.num_left and self._start(request, now):
                draft.add(request)
        return draft.plan()

    def _add_shorter(
        self, oldest: PrefillRequest, running: list[PrefillRequest], draft: StepDraft, now: float
    ) -> None:
        """Up to half of the step goes to prompts with less to compute than the oldest, shortest first."""
        share = draft.num_left // 2
        shorter = [
            request
            for request in (*running, *self._queue.ahead())
            if 0 < request.num_computable < oldest.num_computable
        ]
        for request in sorted(shorter, key=lambda request: request.num_computable):
            if share and (request.state is _S.COMPUTING or self._start(request, now)):
                share -= draft.add(request, share)

    def complete(self, plan: StepPlan, results: Sequence[StepResult], now: float) -> None:
        """The step ran: blocks go out, finished prompts deliver their bootstrap token."""
        for room, chunk, result in zip(plan.rooms, plan.chunks, results, strict=True):
            request = self._computing[room]
            request.num_computed = chunk.start + len(chunk.token_ids)
            if isinstance(result, ScoredPrompt | SampledToken):
                request.prompt_logprobs.extend(result.prompt_logprobs)
            if isinstance(result, RowFault):
                self._fail(room, result.reason, result.detail, now)
            elif isinstance(result, SampledToken):
                self._prompt_computed(request, result, now)
            elif request.transfers:
                num_full = request.num_computed // self._limits.block_size
                self._out.append(BlocksComputed(room, num_full))

    def step_failed(self, plan: StepPlan, detail: str, now: float) -> None:
        """The step raised: its rooms end, the others go on."""
        for room in plan.rooms:
            self._fail(room, FailureReason.INTERNAL, detail, now)

    def take_no_more(self) -> None:
        """Refuse new rooms; those that are here go on."""
        self._draining = True

    @property
    def idle(self) -> bool:
        """Whether no room is here; one is until its decode engine has accepted it."""
        return not self._rooms

    def shut_down(self, now: float) -> None:
        """Refuse new rooms and fail those that are here."""
        self.take_no_more()
        self._end_rooms("the prefill engine shuts down", now)

    def _num_rooms(self) -> int:
        return len(self._rooms)

    def _end_rooms(self, detail: str, now: float) -> None:
        for room in list(self._rooms):
            self._fail(room, FailureReason.DRAINING, detail, now)

    def _end_rooms_of(self, balancers: Collection[WorkerRef], now: float) -> None:
        """Nobody reads their answers any more; a balancer that lives all the same begins anew."""
        for request in [r for r in self._rooms.values() if r.dispatch.reply_to.ref in balancers]:
            self._fail(request.room, FailureReason.BALANCER_LOST, "its balancer is gone", now)

    def load(self) -> WorkerLoad:
        """Queue, running and pages, for the heartbeat."""
        return WorkerLoad(
            state=WorkerState.DRAINING if self._draining else WorkerState.READY,
            num_queued=len(self._queue),
            num_running=len(self._computing),
            num_rooms=len(self._rooms),
            pages=self.ledger.counts(),
            counters={
                "orphan_pages": self._inspection.num_orphan_pages,
                "balancers_lost": self._balancers.num_lost,
                "blocks_resent": self._num_resent,
            },
        )

    # --- dispatch ------------------------------------------------------------------------------

    def _accept(self, dispatch: PrefillDispatch, now: float) -> None:
        self._reports.expect(dispatch.reply_to, now)
        if dispatch.room in self._tombstones or dispatch.room in self._rooms:
            return
        refusal = self._refusal(dispatch)
        if refusal is not None:
            self._tombstones.add(dispatch.room, now)
            self._tell_failure(dispatch, *refusal)
            return
        hashes = self._hasher.hashes(dispatch.prompt_token_ids)
        request = PrefillRequest(dispatch, arrived_at=now, hashes=hashes)
        self._rooms[request.room] = request
        self._queue.append(request)
        if dispatch.sampling.grammar is not None:
            self._out.append(CompileGrammar(request.room, dispatch.sampling.grammar))

    def _grammar_compiled(self, event: GrammarCompiled, now: float) -> None:
        request = self._rooms.get(event.room)
        if event.problem is not None:
            self._fail(event.room, event.reason, event.problem, now)
        elif request is not None:
            request.grammar = event.grammar

    def _refusal(self, dispatch: PrefillDispatch) -> tuple[FailureReason, str] | None:
        if self._draining or self._commands.holding:
            return FailureReason.DRAINING, "the prefill engine takes no new rooms"
        if len(self._queue) >= self._limits.max_queue:
            return FailureReason.QUEUE_FULL, f"{len(self._queue)} requests wait already"
        if self._balancers.is_dead(dispatch.reply_to.ref):
            return FailureReason.BALANCER_LOST, f"balancer {dispatch.reply_to.ref} is gone"
        return refusal_of(dispatch, self._limits)

    def _start(self, request: PrefillRequest, now: float) -> bool:
        """Let a queued prompt compute, if sequences, pages and those before it allow."""
        if len(self._computing) >= self._limits.max_num_seqs:
            return False
        if not self._queue.may_begin(request, now):
            return False
        prefix = self._cached_prefix(request)
        num_new = self._limits.blocks_for(request.num_tokens) - len(prefix)
        pages = self.ledger.take(request.room, prefix, num_new)
        if pages is None:
            self._queue.lacks_pages(request, now)
            return False
        self._queue.begin(request)
        request.advance(_E.START, _S.COMPUTING)
        request.pages = pages
        request.num_cached = request.num_computed = len(prefix) * self._limits.block_size
        request.started_at = now
        self._computing[request.room] = request
        decode = request.dispatch.decode
        if decode is not None:
            self._out.append(OpenTransfer(request.room, decode, tuple(pages)))
            self._out.append(Post(decode, PrefillStarted(request.room)))
            if prefix:
                self._out.append(BlocksComputed(request.room, len(prefix)))
        return True

    def _cached_prefix(self, request: PrefillRequest) -> list[int]:
        """Cached pages of the prompt, short of its last token: that one must be computed.

        Tokens that are to be scored must be computed too: pages hold no logits.
        """
        if not self._limits.prefix_caching or request.num_scored:
            return []
        usable = (request.num_tokens - 1) // self._limits.block_size
        return self.ledger.lookup(request.hashes[:usable])

    # --- outcomes ------------------------------------------------------------------------------

    def _prompt_computed(self, request: PrefillRequest, token: SampledToken, now: float) -> None:
        dispatch, token_id = request.dispatch, token.token_id
        if token_id >= self._limits.vocab_size:
            detail = f"token id {token_id} beyond vocabulary {self._limits.vocab_size}"
            self._fail(request.room, FailureReason.NUMERICAL, detail, now)
            return
        finish = finish_of(request, token)
        if self._limits.prefix_caching:
            for index, name in enumerate(request.hashes):
                self.ledger.name_block(request.room, index, name)
        tokens = room_tokens(request, token, finish, now)
        request.prompt_logprobs.clear()
        self._out.append(Post(dispatch.reply_to, TokenBatch((tokens,))))
        if finish is None:
            self._hand_off(request, token_id)
        else:
            self._tell_decode(dispatch, FailureReason.FINISHED)
            self._end(request, now)

    def _hand_off(self, request: PrefillRequest, token_id: int) -> None:
        request.advance(_E.HAND_OFF, _S.SENDING)
        del self._computing[request.room]
        self.ledger.lease(request.room)
        record = record_of(request, token_id)
        self._out.append(PromptComputed(request.room, record))

    def _aborted(self, sender: Peer, message: AbortRoom, now: float) -> None:
        request = self._rooms.get(message.room)
        if request is None:
            self._tombstones.add(message.room, now)
            # How its writes ended is forgotten, and who asks may have missed that they were cut short.
            self._out.append(Post(sender, WriterStopped(message.room, cut=True)))
            return
        decode = request.dispatch.decode
        if decode is not None and sender.ref == decode.ref:
            self._fail(message.room, FailureReason.PEER_ABORTED, message.reason.value, now)
        elif sender.ref == request.dispatch.reply_to.ref:
            self._tell_decode(request.dispatch, message.reason)
            self._end(request, now)

    def _transfer_closed(self, event: TransferClosed, now: float) -> None:
        self._num_resent += event.num_resent
        request = self._rooms.get(event.room)
        if request is None or request.state not in (_S.SENDING, _S.CLOSING):
            return  # it ended by itself: COMPUTING rooms close only after EndTransfer
        request.advance(_E.CLOSED, _S.ENDED)
        self._forget(request, now)

    def _fail(self, room: bytes, reason: FailureReason, detail: str, now: float) -> None:
        request = self._rooms.get(room)
        if request is None or request.state is _S.CLOSING:
            return
        self._tell_failure(request.dispatch, reason, detail)
        self._end(request, now)

    def _tell_failure(self, dispatch: PrefillDispatch, reason: FailureReason, detail: str) -> None:
        self._out.append(Post(dispatch.reply_to, LegFailed(dispatch.room, reason, detail[:1024])))
        self._tell_decode(dispatch, FailureReason.PEER_ABORTED)

    def _tell_decode(self, dispatch: PrefillDispatch, reason: FailureReason) -> None:
        if dispatch.decode is not None:
            self._out.append(Post(dispatch.decode, AbortRoom(dispatch.room, reason)))

    def _end(self, request: PrefillRequest, now: float) -> None:
        """End a request here; its pages go when no write reads them any more."""
        if request.state is _S.CLOSING:
            return
        if request.state is _S.QUEUED:
            self._queue.remove(request)
        self._computing.pop(request.room, None)
        if request.transfers and request.state in (_S.COMPUTING, _S.SENDING):
            request.advance(_E.END, _S.CLOSING)
            self._out.append(EndTransfer(request.room))
        else:
            request.advance(_E.END, _S.ENDED)
            self._forget(request, now)

    def _forget(self, request: PrefillRequest, now: float) -> None:
        if request.may_be_continued and self._limits.salvage_lease_s:
            self.ledger.keep(request.room, now + self._limits.salvage_lease_s)
        self.ledger.release(request.room)
        self._tombstones.add(request.room, now)
        del self._rooms[request.room]

    def _held_rooms(self) -> Iterator[tuple[Peer, bytes, Stage]]:
        return (
            (r.dispatch.reply_to, r.room, STAGES[r.state])
            for r in self._rooms.values()
            if r.state in STAGES
        )

    def validate(self) -> None:
        """Raise where requests, queue and ledger disagree."""
        self.ledger.validate()
        holding = {r.room for r in self._rooms.values() if r.state is not _S.QUEUED}
        assert holding == set(self.ledger.rooms())
        assert [r.room for r in self._queue] == [
            r.room for r in self._rooms.values() if r.state is _S.QUEUED
        ]
        assert set(self._computing) == {
            r.room for r in self._rooms.values() if r.state is _S.COMPUTING
        }

"""Random walks through the decode core: no page that a peer may still write is ever anybody else's."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bootstrap.identity import Peer, Role
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    HandoffRecord,
    LegFailed,
    Manifest,
    PrefillStarted,
    TokenBatch,
    WriterStopped,
)
from decode.core import DecodeCore
from decode.instructions import DropSwap, InboundClosed, InboundOpened, TearDown, TornDown
from decode.quarantine import SETTLE_S
from decode.request import DecodeState
from engine.core import BalancerIsMember, PeerJoined, PeerLeft, Post, Received, SwapOut
from engine.step import NumericalFault, SampledToken
from kv_transfer.ledger import PageState
from kv_transfer.prefix import prompt_digest
from tests.support.cores import (
    BALANCER,
    STRANGER,
    decode_dispatch,
    info_of,
    limits,
    machine_settings,
    peer,
    prompt,
    room,
    sampling,
)

NUM_BLOCKS = 10


class DecodeMachine(RuleBasedStateMachine):
    """The model plays balancer and prefill engines, and remembers who may still write what."""

    def __init__(self) -> None:
        super().__init__()
        self.core = DecodeCore(limits(num_blocks=NUM_BLOCKS, max_queue=4, max_num_seqs=4))
        self.core.handle(BalancerIsMember(BALANCER.ref), 0.0)
        self.now = 0.0
        self.prefills = [peer("p0", 0), peer("p1", 1)]
        self.num_lives = 2
        self.writers: dict[bytes, Peer] = {}  # every room ever: its prefill engine
        self.dispatches: dict[bytes, object] = {}
        self.writable: dict[bytes, Manifest] = {}
        self.inbound: set[bytes] = set()
        self.copies: set[bytes] = set()
        self.positions: dict[bytes, int] = {}
        self.over: set[bytes] = set()
        for each in self.prefills:
            self.core.handle(PeerJoined(info_of(each, Role.PREFILL)), 0.0)

    def take_out(self) -> None:
        for instruction in self.core.drain():
            if isinstance(instruction, InboundOpened):
                self.inbound.add(instruction.blocks.room)
            elif isinstance(instruction, InboundClosed):
                self.inbound.remove(instruction.room)
            elif isinstance(instruction, DropSwap):
                self.copies.discard(instruction.room)
            elif isinstance(instruction, TearDown):
                assert instruction.writer.ref not in [each.ref for each in self.prefills]
            elif isinstance(instruction, Post):
                self.posted(instruction)

    def posted(self, post: Post) -> None:
        message = post.message
        if isinstance(message, Manifest):
            assert post.peer == self.writers[message.room]
            assert self.writable.setdefault(message.room, message) == message
        elif isinstance(message, LegFailed):
            assert message.room not in self.over
            self.over.add(message.room)
        elif isinstance(message, TokenBatch):
            for tokens in message.rooms:
                assert tokens.room not in self.over
                assert tokens.position == self.positions[tokens.room]
                self.positions[tokens.room] += 1
                if tokens.finish is not None:
                    self.over.add(tokens.room)

    def handle(self, event: object) -> None:
        self.core.handle(event, self.now)
        self.take_out()

    def any_room(self, data: st.DataObject) -> bytes:
        return data.draw(st.sampled_from(sorted(self.writers)))

    @rule(
        num_tokens=st.integers(0, 14),
        max_tokens=st.integers(1, 12),
        family=st.sampled_from([0, 40]),
        which=st.integers(0, 1),
        deadline_s=st.sampled_from([5.0, 100.0]),
        started=st.booleans(),
    )
    def dispatch(
        self,
        num_tokens: int,
        max_tokens: int,
        family: int,
        which: int,
        deadline_s: float,
        started: bool,
    ) -> None:
        number, writer = len(self.writers), self.prefills[which]
        self.writers[room(number)] = writer
        self.positions[room(number)] = 1
        message = decode_dispatch(
            number,
            prompt(num_tokens, first=family),
            prefill=writer,
            sampling=sampling(max_tokens),
            deadline_s=deadline_s,
        )
        self.dispatches[room(number)] = message
        if started:
            self.handle(Received(writer, PrefillStarted(room(number))))
        self.handle(Received(BALANCER, message))

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def prefill_started(self, data: st.DataObject) -> None:
        which = self.any_room(data)
        self.handle(Received(self.writers[which], PrefillStarted(which)))

    @precondition(lambda self: self.writable)
    @rule(data=st.data(), wrong=st.sampled_from(["", "", "", "epoch", "digest", "sender"]))
    def record(self, data: st.DataObject, wrong: str) -> None:
        which = data.draw(st.sampled_from(sorted(self.writable)))
        manifest, dispatch = self.writable[which], self.dispatches[which]
        digest = b"x" * 16 if wrong == "digest" else prompt_digest(dispatch.prompt_token_ids)
        record = HandoffRecord(
            room=which,
            epoch=manifest.epoch + (wrong == "epoch"),
            token_id=7,
            position=0,
            num_prompt_tokens=len(dispatch.prompt_token_ids),
            prompt_digest=digest,
        )
        self.handle(Received(STRANGER if wrong == "sender" else self.writers[which], record))
        if wrong in ("", "digest"):
            del self.writable[which]  # it says that all writes are over
        if wrong == "digest":
            self.handle(Received(self.writers[which], WriterStopped(which)))

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), by=st.sampled_from(["balancer", "prefill", "finished", "stranger"]))
    def abort(self, data: st.DataObject, by: str) -> None:
        which = self.any_room(data)
        senders = {"balancer": BALANCER, "stranger": STRANGER}
        reason = FailureReason.FINISHED if by == "finished" else FailureReason.CANCELLED
        sender = senders.get(by, self.writers[which])
        self.handle(Received(sender, AbortRoom(which, reason)))

    @precondition(lambda self: self.writable)
    @rule(data=st.data(), right=st.booleans(), cut=st.booleans())
    def writer_stopped(self, data: st.DataObject, right: bool, cut: bool) -> None:
        which = data.draw(st.sampled_from(sorted(self.writable)))
        if not right:
            self.handle(Received(STRANGER, WriterStopped(which, self.writable[which].epoch)))
            return
        if not cut:
            self.handle(Received(self.writers[which], AbortRoom(which, FailureReason.DEADLINE)))
        self.handle(Received(self.writers[which], WriterStopped(which, 0, cut)))
        if cut:  # the last bytes take a moment, whatever the writer says next
            self.handle(Received(self.writers[which], WriterStopped(which, 0)))
            self.time_passes(SETTLE_S - 0.1)
            self.pages_stay_the_writers()
            self.time_passes(0.2)
            settled = self.core.scheduler.ledger.pages_of(which)
            assert not settled, "pages wait for nothing"
        del self.writable[which]

    @rule(how=st.sampled_from(["token", "token", "token", "nan", "raise"]))
    def step(self, how: str) -> None:
        plan = self.core.plan(self.now)
        self.take_out()
        if plan is None:
            return
        moved = [page for swap in plan.swaps for page in swap.pages]
        assert len(moved) == len(set(moved)) or len(plan.swaps) > 1
        for swap in plan.swaps if how != "raise" else ():
            if isinstance(swap, SwapOut):
                assert swap.room not in self.copies
                self.copies.add(swap.room)
            else:
                self.copies.remove(swap.room)
        token = SampledToken(7, 0.0)
        if how == "raise":
            self.core.step_failed(plan, "boom", self.now)
        else:
            result = NumericalFault("NaN") if how == "nan" else token
            self.core.complete(plan, [result, *[token] * len(plan.rooms)][: len(plan.rooms)], 0.0)
        self.take_out()

    @rule(which=st.integers(0, 1), silent_first=st.booleans(), heard_of=st.booleans())
    def prefill_dies(self, which: int, silent_first: bool, heard_of: bool) -> None:
        """It may write until its connection is torn down; a new life takes its place."""
        dead = self.prefills[which]
        self.prefills[which] = peer(f"p{which}", self.num_lives)
        self.num_lives += 1
        if silent_first:
            self.handle(PeerLeft(dead.ref, dead=False))
        self.handle(PeerLeft(dead.ref, dead=True))
        if heard_of:
            self.handle(PeerJoined(info_of(self.prefills[which], Role.PREFILL)))
        self.whole()
        self.handle(TornDown(dead.ref))
        self.pages_stay_the_writers()
        for room_, writer in self.writers.items():
            if writer == dead:
                self.writable.pop(room_, None)
        self.time_passes(SETTLE_S)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.core.tick(self.now)
        self.take_out()

    @invariant()
    def whole(self) -> None:
        self.core.validate()
        scheduler = self.core.scheduler
        assert self.copies == set(scheduler.retracted)
        assert self.inbound == {*scheduler.receiving, *self.core.quarantine.rooms()}
        for request in scheduler.running.values():
            assert request.state is DecodeState.RUNNING
            assert self.positions[request.room] == request.next_position

    @invariant()
    def pages_stay_the_writers(self) -> None:
        ledger = self.core.scheduler.ledger
        for which, manifest in self.writable.items():
            for page in manifest.pages:
                assert ledger.state_of(page) in (PageState.WRITING, PageState.QUARANTINED)
                assert page in ledger.pages_of(which)

    def teardown(self) -> None:
        """Shut down and let all writers stop: nothing is left."""
        self.core.shut_down(self.now)
        self.take_out()
        self.pages_stay_the_writers()
        for which, writer in self.writers.items():
            self.handle(Received(writer, WriterStopped(which)))
        self.whole()
        assert self.core.load().num_rooms == 0
        assert self.core.scheduler.ledger.num_available == NUM_BLOCKS
        assert not self.inbound | self.copies


DecodeMachine.TestCase.settings = machine_settings(150)
TestDecodeMachine = DecodeMachine.TestCase

"""Random walks through the prefill core: whatever comes, each room has one end and gives its pages back."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bootstrap.messages import AbortRoom, FailureReason, LegFailed, PrefillStarted, TokenBatch
from engine.core import BalancerIsMember, Post, Received
from engine.step import NumericalFault, SampledToken
from prefill.core import PrefillCore
from prefill.handoffs import (
    EndTransfer,
    OpenTransfer,
    PromptComputed,
    TransferClosed,
    TransferFailed,
)
from tests.support.cores import (
    BALANCER,
    DECODE,
    STRANGER,
    limits,
    machine_settings,
    prefill_dispatch,
    prompt,
    room,
    sampling,
)

STOP_ID = 50
NUM_BLOCKS = 8


class PrefillMachine(RuleBasedStateMachine):
    """The model plays handoffs, balancer and decode engine, and counts what each room was told."""

    def __init__(self) -> None:
        super().__init__()
        self.core = PrefillCore(limits(num_blocks=NUM_BLOCKS, max_queue=3, max_num_seqs=3))
        self.core.handle(BalancerIsMember(BALANCER.ref), 0.0)
        self.now = 0.0
        self.dispatched: list[int] = []
        self.open: list[bytes] = []  # transfers that have not closed
        self.ended: set[bytes] = set()  # transfers that the core ended
        self.tokens: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.failed: set[bytes] = set()

    def take_out(self) -> None:
        for instruction in self.core.drain():
            if isinstance(instruction, OpenTransfer):
                assert instruction.pages == self.core.ledger.pages_of(instruction.room)
                self.open.append(instruction.room)
            elif isinstance(instruction, EndTransfer):
                assert instruction.room in self.open
                assert instruction.room not in self.ended
                self.ended.add(instruction.room)
            elif isinstance(instruction, PromptComputed):
                assert instruction.room in self.tokens
            elif isinstance(instruction, Post):
                self.posted(instruction)

    def posted(self, post: Post) -> None:
        message = post.message
        if isinstance(message, PrefillStarted):
            assert message.room in self.open
        elif isinstance(message, LegFailed):
            assert message.room not in self.failed | self.finished
            self.failed.add(message.room)
        elif isinstance(message, TokenBatch):
            (tokens,) = message.rooms
            assert tokens.room not in self.tokens | self.failed
            self.tokens.add(tokens.room)
            if tokens.finish is not None:
                self.finished.add(tokens.room)

    def handle(self, event: object) -> None:
        self.core.handle(event, self.now)
        self.take_out()

    @rule(
        num_tokens=st.integers(0, 20),
        family=st.sampled_from([0, 40]),
        deadline_s=st.sampled_from([2.0, 100.0]),
        alone=st.booleans(),
    )
    def dispatch(self, num_tokens: int, family: int, deadline_s: float, alone: bool) -> None:
        number = len(self.dispatched)
        self.dispatched.append(number)
        params = sampling(1 if alone else 8, stop_token_ids=(STOP_ID,))
        dispatch = prefill_dispatch(
            number,
            prompt(num_tokens, first=family),
            decode=None if alone else DECODE,
            sampling=params,
            deadline_s=deadline_s,
        )
        self.handle(Received(BALANCER, dispatch))

    @precondition(lambda self: self.dispatched)
    @rule(data=st.data())
    def repeat_dispatch(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.dispatched))
        before = self.core.load().num_rooms
        self.handle(Received(BALANCER, prefill_dispatch(number, prompt(4))))
        assert self.core.load().num_rooms == before

    @rule(data=st.data(), sender=st.sampled_from([DECODE, BALANCER, STRANGER]))
    def abort(self, data: st.DataObject, sender: object) -> None:
        number = data.draw(st.integers(0, len(self.dispatched)))
        if number == len(self.dispatched):
            self.dispatched.append(number)  # it overtakes a dispatch that never gets in
        self.handle(Received(sender, AbortRoom(room(number), FailureReason.CANCELLED)))

    @rule(how=st.sampled_from(["token", "token", "token", "stop", "nan", "raise"]))
    def step(self, how: str) -> None:
        plan = self.core.plan(self.now)
        self.take_out()
        if plan is None:
            return
        assert sum(len(chunk.token_ids) for chunk in plan.chunks) <= 8
        for chunk in plan.chunks:
            assert chunk.start + len(chunk.token_ids) <= 4 * len(chunk.pages)
        token = SampledToken(STOP_ID if how == "stop" else 7, 0.0)
        result = NumericalFault("NaN") if how == "nan" else token
        if how == "raise":
            self.core.step_failed(plan, "boom", self.now)
        else:
            results = [result if chunk.sample else None for chunk in plan.chunks]
            self.core.complete(plan, results, self.now)
        self.take_out()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), fails=st.booleans())
    def transfer_ends(self, data: st.DataObject, fails: bool) -> None:
        closable = [r for r in self.open if r in self.ended or r in self.tokens or fails]
        if not closable:
            return
        which = data.draw(st.sampled_from(closable))
        if fails:
            self.handle(TransferFailed(which, FailureReason.TRANSFER_FAILED, "link down"))
        self.handle(TransferClosed(which))
        self.open.remove(which)
        assert not self.core.ledger.pages_of(which)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.core.tick(self.now)
        self.take_out()

    @invariant()
    def whole(self) -> None:
        self.core.validate()
        for which in self.open:
            assert self.core.ledger.pages_of(which), "pages that a write may still read"

    def teardown(self) -> None:
        """Shut down and let all transfers end: nothing is left."""
        self.core.shut_down(self.now)
        self.take_out()
        for which in self.open:
            self.core.handle(TransferClosed(which), self.now)
        self.core.validate()
        assert self.core.load().num_rooms == 0
        assert self.core.ledger.num_available == NUM_BLOCKS


PrefillMachine.TestCase.settings = machine_settings(100)
TestPrefillMachine = PrefillMachine.TestCase

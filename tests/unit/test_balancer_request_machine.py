"""Whatever workers do to a request: tokens come once and in order, and there is one outcome."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.identity import Role
from bootstrap.messages import FailureReason as R
from bootstrap.messages import RoomTokens
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.attempt import TokenMerge
from cluster.balancer.instructions import Deliver, Dispatch, EndAttempt, Fail
from cluster.balancer.policy import Pair
from cluster.balancer.request import Request, RequestSpec, RetryRules
from tests.support.members import worker_info

PAIR = Pair(worker_info("p1", Role.PREFILL), worker_info("d1", Role.DECODE))
OTHER = Pair(worker_info("p2", Role.PREFILL), worker_info("d2", Role.DECODE))
LENGTH = FinishReason.LENGTH

tokens_with_ends = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=30)


@given(tokens_with_ends, st.integers(1, 10))
def test_merge_yields_each_position_once_and_in_order(batches, length):
    """Batches of a stream 0, 1, ... with LENGTH after its last token, in any order, repeated."""
    merge, out, finished = TokenMerge(0), [], None
    for position, count in batches:
        ids = tuple(range(position, min(position + count, length)))
        if position > length:
            continue
        ends = LENGTH if position + len(ids) == length else None
        merged = merge.push(RoomTokens(bytes(16), position, ids, ends))
        finish = merged.finish
        out += merged.token_ids
        assert out == list(range(merge.next))
        finished = finish or finished
        if finished:
            break
    assert (finished is not None) == (merge.next == length)
    if not finished:
        merged = merge.push(RoomTokens(bytes(16), 0, tuple(range(length)), LENGTH))
        assert out + list(merged.token_ids) == list(range(length))
        assert merged.finish is LENGTH


class World:
    """Random workers around one request; checks what must hold whatever they do."""

    def __init__(self, length: int) -> None:
        self.length = length
        spec = RequestSpec("req", (1, 2, 3), SamplingParams(seed=0, max_tokens=length))
        rules = RetryRules(max_attempts=3)
        self.request = Request(spec, rules, deadline_at=100.0, waiting_since=0.0)
        self.now = 0.0
        self.rooms = 0
        self.delivered: list[int] = []
        self.outcomes: list[object] = []
        self.pairs = [PAIR, OTHER]

    def carry_out(self, instructions) -> None:
        for instruction in instructions:
            assert not self.outcomes or isinstance(instruction, EndAttempt)
            if isinstance(instruction, Deliver):
                self.delivered += instruction.token_ids
                if instruction.finish:
                    self.outcomes.append(instruction.finish)
            elif isinstance(instruction, Fail):
                self.outcomes.append(instruction.failure.kind)
            elif isinstance(instruction, EndAttempt):
                attempt = instruction.attempt
                ended = {leg.peer.ref for leg in attempt.legs if leg.over}
                ended |= {peer.ref for peer in instruction.aborts}
                assert ended == set(attempt.refs), "a leg was left running"
            elif isinstance(instruction, Dispatch):
                assert instruction.attempt.output_offset == len(self.delivered)
        assert self.delivered == list(range(len(self.delivered)))
        assert self.request.ended == bool(self.outcomes)
        assert self.request.ended or self.request.delivered == self.delivered

    def step(self, action: int, number: int) -> None:
        made, attempt = self.request, self.request.attempt
        self.now += 0.2
        if made.ended:
            self.carry_out(made.tick(self.now))
            return
        if attempt is None:
            if action % 3:
                self.rooms += 1
                room = bytes([self.rooms]) * 16
                pair = self.pairs[number % 2]
                self.carry_out(made.dispatch(pair, room, self.now))
            else:
                self.carry_out(made.tick(self.now))
            return
        leg = attempt.legs[number % len(attempt.legs)]
        ref = leg.peer.ref
        if action < 6:
            self.send_tokens(attempt, leg, number)
        elif action == 6:
            reasons = list(R)
            self.carry_out(made.leg_failed(ref, reasons[number % len(reasons)], "", self.now))
        elif action == 7:
            self.carry_out(made.worker_lost(ref, "gone", self.now))
        elif action == 8:
            self.carry_out(made.progress(ref, named=number % 3 == 0, now=self.now))
        elif action == 9 and number % 8 == 0:
            self.carry_out(made.cancel())
        else:
            self.carry_out(made.tick(self.now))

    def send_tokens(self, attempt, leg, number) -> None:
        if leg is attempt.prefill:
            start, end = attempt.output_offset, attempt.output_offset + 1
        else:
            start = min(attempt.output_offset + 1 + number % 5, self.length)
            end = min(start + 1 + number % 3, self.length)
        finish = LENGTH if end == self.length else None
        ids = tuple(range(start, end))
        batch = RoomTokens(bytes(16), start, ids, finish)
        self.carry_out(self.request.tokens(leg.peer.ref, batch, self.now))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 10), st.integers(0, 60)), max_size=60))
def test_whatever_happens_tokens_come_once_in_order_and_there_is_one_outcome(length, steps):
    world = World(length)
    for action, number in steps:
        world.step(action, number)
    while not world.request.ended:
        world.now += 1.0
        world.carry_out(world.request.tick(world.now))
    assert len(world.outcomes) == 1
    if world.outcomes[0] is LENGTH:
        assert world.delivered == list(range(length))

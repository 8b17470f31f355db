"""Turns inside the engines, whatever comes: nobody starves, nobody idles, and the oldest always goes on."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.messages import TokenBatch
from decode.request import DecodeRequest, DecodeState
from decode.scheduler import DecodeScheduler
from engine.core import Received
from engine.patience import MAX_PASSED, MAX_PASSED_S, Patience
from prefill.core import PrefillCore
from prefill.handoffs import TransferClosed
from tests.support.cores import (
    BALANCER,
    decode_dispatch,
    limits,
    prefill_dispatch,
    prompt,
    room,
    sent,
    step,
)

NUM_BLOCKS, BUDGET = 16, 8
SIZES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=40)
LIMITS = {"num_blocks": NUM_BLOCKS, "max_num_batched_tokens": BUDGET, "max_queue": 99}


def test_patience_is_about_the_present_head():
    patience = Patience()
    for _ in range(2 * MAX_PASSED):
        assert patience.may_pass(b"a", 0.0), "its turn has not come"
        patience.passed(b"a")
    patience.waits(b"a", 0.0)
    for _ in range(MAX_PASSED):
        assert patience.may_pass(b"a", 0.0)
        patience.passed(b"a")
    assert not patience.may_pass(b"a", 0.0)
    patience.waits(b"b", 0.0)
    assert patience.may_pass(b"b", 0.0)
    assert not patience.may_pass(b"b", MAX_PASSED_S)


@settings(max_examples=80, deadline=None)
@given(SIZES, st.integers(0, 4))
def test_every_prompt_is_computed_and_none_is_passed_too_often(sizes, num_kept):
    """The latest `num_kept` finished prompts keep their pages, as with a slow decode engine."""
    core = PrefillCore(limits(prefix_caching=False, **LIMITS))
    core._queue._patience = Patience(max_passed=2, max_passed_s=1.0)
    waiting = dict.fromkeys(range(len(sizes)))
    passed = dict.fromkeys(waiting, 0)
    arrived: list[int] = []
    finished: list[int] = []
    pauses = iter(sizes)
    num_steps = 0
    while waiting:
        more = next(pauses, None)
        if more is not None:
            number = len(arrived)
            arrived.append(number)
            token_ids = prompt(more[0], first=7 * number)
            core.handle(Received(BALANCER, prefill_dispatch(number, token_ids)), 0.0)
        for _ in range(1 if more is None else more[1]):
            before = [n for n in arrived if not core.ledger.pages_of(room(n)) and n in waiting]
            lacks_pages = bool(before) and core._queue._patience._head == room(before[0])
            plan = step(core)
            num_steps += 1
            assert num_steps < 10_000, "somebody starved"
            if lacks_pages:
                _count_passes(core, before, passed)
            for tokens in (batch.rooms[0] for batch in sent(core.drain(), TokenBatch)):
                number = int.from_bytes(tokens.room, "big")
                del waiting[number]
                finished.append(number)
            while len(finished) > num_kept or (plan is None and finished):
                core.handle(TransferClosed(room(finished.pop(0))), 0.0)
        core.validate()
    assert max(passed.values()) <= 2


def _count_passes(core: PrefillCore, before: list[int], passed: dict[int, int]) -> None:
    """Of those that waited, the first is passed by each that got pages when it did not."""
    if not before or core.ledger.pages_of(room(before[0])):
        return
    passed[before[0]] += sum(bool(core.ledger.pages_of(room(n))) for n in before[1:])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=20))
def test_a_step_is_full_while_there_is_work_and_the_oldest_gets_half_of_it(sizes):
    roomy = {**LIMITS, "num_blocks": 400, "max_num_seqs": 99, "prefix_caching": False}
    core = PrefillCore(limits(**roomy))
    for number, size in enumerate(sizes):
        core.handle(
            Received(BALANCER, prefill_dispatch(number, prompt(size, first=7 * number))), 0.0
        )
    left = {room(number): size for number, size in enumerate(sizes)}
    while left:
        oldest = next(iter(core._computing), None)
        plan = step(core)
        assert plan is not None
        took = {r: len(c.token_ids) for r, c in zip(plan.rooms, plan.chunks, strict=True)}
        assert sum(took.values()) == min(BUDGET, sum(left.values()))
        if oldest is not None:
            assert took[oldest] >= min(BUDGET // 2, left[oldest])
        for each, num_tokens in took.items():
            left[each] -= num_tokens
            if not left[each]:
                del left[each]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 55), st.integers(1, 6)), min_size=1, max_size=30))
def test_every_prompt_is_admitted_and_ends_whoever_passes_whom(requests):
    scheduler = DecodeScheduler(limits(prefix_caching=False, **LIMITS))
    left: dict[bytes, int] = {}
    made: list[DecodeRequest] = []
    for number, (size, num_tokens) in enumerate(requests):
        token_ids = list(prompt(size, first=7 * number))
        request = DecodeRequest(decode_dispatch(number, token_ids), 0.0, token_ids, [])
        scheduler.started(request)
        left[request.room] = num_tokens
        made.append(request)
    now = 0.0
    while left:
        now += 0.1
        assert now < 1000, "somebody starved"
        _, admitted = scheduler.plan(now)
        for request in admitted:
            scheduler.ledger.expose(request.room)
        running = list(scheduler.running.values())
        for request in running:
            scheduler.append(request, 9)
            left[request.room] -= 1
            if not left[request.room]:
                scheduler.remove(request)
                del left[request.room]
        for request in list(scheduler.receiving.values()):
            scheduler.commit(request, 9, now)
        scheduler.validate()
    assert all(request.state is DecodeState.ENDED for request in made)
    assert scheduler.ledger.counts()["free"] == NUM_BLOCKS

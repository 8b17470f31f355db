"""Who is admitted, who decodes, who gives way and comes back."""

import pytest

from bootstrap.errors import IllegalTransition
from decode.request import TRANSITIONS, DecodeEvent, DecodeRequest, DecodeState
from decode.scheduler import DecodeScheduler
from engine.core import StepPlan, SwapIn, SwapOut
from engine.patience import MAX_PASSED, MAX_PASSED_S
from tests.support.cores import decode_dispatch, limits, of_type, prompt, room

_S, _E = DecodeState, DecodeEvent


class Rig:
    """A scheduler and the hands that a core would lend it; time is the number of calls."""

    def __init__(self, **overrides: object) -> None:
        self.scheduler = DecodeScheduler(limits(**overrides))
        self.now = 0.0
        self.pace_s = 1.0

    def start(self, number: int, num_tokens: int, first: int | None = None) -> DecodeRequest:
        token_ids = prompt(num_tokens, first=10 * number if first is None else first)
        hashes = self.scheduler.hasher.hashes(token_ids)
        dispatch = decode_dispatch(number, token_ids)
        request = DecodeRequest(dispatch, self.now, list(token_ids), hashes)
        self.scheduler.started(request)
        return request

    def plan(self) -> StepPlan | None:
        """The next plan; what it admits is exposed."""
        self.now += self.pace_s
        plan, admitted = self.scheduler.plan(self.now)
        for request in admitted:
            self.scheduler.ledger.expose(request.room)
        self.scheduler.validate()
        return plan

    def commit(self, request: DecodeRequest) -> None:
        self.now += self.pace_s
        self.scheduler.commit(request, 99, self.now)
        self.scheduler.validate()

    def run(self, number: int, num_tokens: int, first: int | None = None) -> DecodeRequest:
        """A request that decodes."""
        request = self.start(number, num_tokens, first)
        self.plan()
        self.commit(request)
        return request

    def step(self) -> StepPlan | None:
        """A step in which every running request gets a token."""
        plan = self.plan()
        for request in list(self.scheduler.running.values()):
            self.scheduler.append(request, 98)
        self.scheduler.validate()
        return plan

    def numbers(self, group: dict[bytes, DecodeRequest]) -> list[int]:
        return [int.from_bytes(each, "big") for each in group]

    @property
    def counts(self) -> dict[str, int]:
        return {state: n for state, n in self.scheduler.ledger.counts().items() if n}


@pytest.mark.parametrize("state", list(_S))
@pytest.mark.parametrize("event", list(_E))
def test_the_request_makes_exactly_the_moves_of_its_table(
    state: DecodeState, event: DecodeEvent
) -> None:
    request = DecodeRequest(decode_dispatch(1, (1, 2)), 0.0, [1, 2], [], state=state)
    if (state, event) in TRANSITIONS:
        request.advance(event)
        assert request.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match="request r1 room"):
            request.advance(event)
        assert request.state is state


# --- admission -------------------------------------------------------------------------------


def test_admission_is_all_or_nothing_and_in_order() -> None:
    rig = Rig(num_blocks=8)
    for number, num_tokens in ((1, 16), (2, 20), (3, 16)):
        rig.start(number, num_tokens)
    assert rig.plan() is None
    assert rig.numbers(rig.scheduler.receiving) == [1]
    assert rig.numbers(rig.scheduler.admitting) == [2, 3]
    assert rig.counts == {"free": 4, "writing": 4}


def test_what_fits_may_pass_what_does_not() -> None:
    rig = Rig(num_blocks=8)
    for number, num_tokens in ((1, 16), (2, 20), (3, 4)):
        rig.start(number, num_tokens)
    rig.plan()
    assert rig.numbers(rig.scheduler.receiving) == [1, 3]
    assert rig.numbers(rig.scheduler.admitting) == [2]


def test_only_so_often_is_the_next_passed_and_then_pages_are_kept_for_it() -> None:
    rig = Rig(num_blocks=8)
    rig.pace_s = 0.0
    rig.run(1, 16)
    rig.start(2, 20)
    for number in range(3, 3 + MAX_PASSED):
        small = rig.run(number, 3)
        assert small.state is _S.RUNNING
        rig.scheduler.remove(small)
    rig.start(99, 3)
    rig.plan()
    assert rig.numbers(rig.scheduler.admitting) == [2, 99]
    rig.scheduler.remove(rig.scheduler.running[room(1)])
    rig.plan()
    assert rig.numbers(rig.scheduler.receiving) == [2, 99]


def test_only_so_long_is_the_next_passed() -> None:
    rig = Rig(num_blocks=8)
    rig.run(1, 16)
    rig.start(2, 20)
    rig.plan()
    rig.now += MAX_PASSED_S
    rig.start(3, 3)
    rig.plan()
    assert rig.numbers(rig.scheduler.admitting) == [2, 3]


def test_admission_leaves_one_block_to_grow_for_each_active_request() -> None:
    rig = Rig(num_blocks=8)
    rig.run(1, 16)
    rig.start(2, 13)  # 4 blocks; 4 are free, but 1 will need one of them
    rig.plan()
    assert rig.numbers(rig.scheduler.admitting) == [2]
    rig.scheduler.remove(rig.scheduler.running[room(1)])
    rig.plan()
    assert rig.numbers(rig.scheduler.receiving) == [2]


def test_a_request_alone_may_fill_the_pool() -> None:
    rig = Rig(num_blocks=4)
    rig.start(1, 16)
    rig.plan()
    assert rig.numbers(rig.scheduler.receiving) == [1]


def test_no_more_are_active_than_sequences_are_allowed() -> None:
    rig = Rig(max_num_seqs=2)
    rig.run(1, 3)
    rig.start(2, 3)
    rig.start(3, 3)
    rig.plan()
    assert rig.numbers(rig.scheduler.receiving) == [2]
    assert rig.numbers(rig.scheduler.admitting) == [3]


def test_a_prefix_that_is_held_already_is_shared_and_not_transferred() -> None:
    rig = Rig()
    rig.run(1, 9, first=0)
    rig.step()
    request = rig.start(2, 11, first=0)
    rig.plan()
    ledger = rig.scheduler.ledger
    assert ledger.pages_of(room(2))[:2] == ledger.pages_of(room(1))[:2]
    assert (request.num_cached, request.num_named) == (8, 2)
    assert rig.counts == {"free": 12, "in_use": 3, "writing": 1}


def test_a_whole_prompt_may_be_held_already() -> None:
    rig = Rig()
    rig.run(1, 8, first=0)
    rig.step()
    request = rig.start(2, 8, first=0)
    rig.plan()
    assert rig.counts == {"free": 13, "in_use": 3}  # 1 has grown
    rig.commit(request)
    plan = rig.plan()
    assert plan is not None
    first, second = (chunk.pages for chunk in plan.chunks)
    assert first[:2] == second[:2]
    assert first[2] != second[2], "two requests write one page"


def test_what_was_received_is_found_only_after_a_step_that_computed_with_it() -> None:
    rig = Rig()
    rig.run(1, 9, first=0)
    early = rig.start(2, 9, first=0)
    rig.step()  # admits 2 before 1 has its token
    late = rig.start(3, 9, first=0)
    rig.plan()
    assert (early.num_cached, late.num_cached) == (0, 8)


def test_without_prefix_caching_nothing_is_shared() -> None:
    rig = Rig(prefix_caching=False)
    rig.run(1, 8, first=0)
    rig.start(2, 8, first=0)
    rig.plan()
    assert rig.counts == {"free": 11, "in_use": 3, "writing": 2}


# --- steps -----------------------------------------------------------------------------------


def test_each_step_runs_the_last_token_of_every_running_request() -> None:
    rig = Rig()
    rig.run(1, 6)
    rig.run(2, 3)
    plan = rig.plan()
    assert plan is not None
    assert plan.rooms == (room(1), room(2))
    first = plan.chunks[0]
    assert (list(first.token_ids), first.start, len(first.pages)) == ([99], 6, 2)
    assert first.sample is not None
    assert first.sample.position == 1


def test_a_page_is_added_when_the_next_token_needs_it() -> None:
    rig = Rig()
    request = rig.run(1, 4)
    assert len(request.pages) == 1
    for _ in range(4):
        rig.step()
        assert len(request.pages) == 2
    rig.step()
    assert len(request.pages) == 3


def test_full_blocks_of_output_become_findable() -> None:
    rig = Rig()
    request, lookup = rig.run(1, 4), rig.scheduler.ledger.lookup
    for _ in range(3):
        rig.step()
    hashes = rig.scheduler.hasher.hashes(request.token_ids)
    assert len(hashes) == 2
    assert lookup(hashes) == request.pages[:1]  # the eighth token's KV is not computed yet
    rig.step()
    assert lookup(hashes) == request.pages[:2]
    rig.scheduler.remove(request)
    assert rig.counts == {"cached": 2, "free": 14}


# --- retraction ------------------------------------------------------------------------------


def crowded() -> Rig:
    """Two running requests, no free page, and both will want one."""
    rig = Rig(num_blocks=4, prefix_caching=False)
    rig.run(1, 3)
    rig.run(2, 3)
    for _ in range(5):
        rig.step()  # both grow into their second page and fill it
    assert rig.counts == {"in_use": 4}
    return rig


def test_the_youngest_gives_way_with_its_bytes_kept() -> None:
    rig = crowded()
    victim = rig.scheduler.running[room(2)]
    pages = tuple(victim.pages)
    plan = rig.step()
    assert plan is not None
    assert plan.swaps == (SwapOut(room(2), pages),)
    assert plan.rooms == (room(1),)
    assert rig.numbers(rig.scheduler.retracted) == [2]
    assert rig.scheduler.num_retractions == 1
    assert rig.counts == {"free": 1, "in_use": 3}


def test_nobody_new_is_admitted_before_the_retracted_are_back() -> None:
    rig = crowded()
    rig.step()
    rig.start(3, 1)
    rig.step()
    assert rig.numbers(rig.scheduler.admitting) == [3]
    rig.scheduler.remove(rig.scheduler.running[room(1)])
    plan = rig.plan()
    assert plan is not None
    assert plan.rooms == (room(2),)
    assert rig.numbers(rig.scheduler.admitting) == [3]  # one page is left, and 2 may need it
    rig.scheduler.remove(rig.scheduler.running[room(2)])
    rig.plan()
    assert rig.numbers(rig.scheduler.receiving) == [3]


def test_a_resumed_request_gets_back_its_blocks_and_goes_on() -> None:
    rig = crowded()
    victim = rig.scheduler.running[room(2)]
    num_tokens, num_pages = len(victim.token_ids), len(victim.pages)
    rig.step()
    rig.scheduler.remove(rig.scheduler.running[room(1)])
    plan = rig.plan()
    assert plan is not None
    (swap,) = of_type(plan.swaps, SwapIn)
    assert swap == SwapIn(room(2), 0, tuple(victim.pages[:num_pages]))
    assert plan.chunks[0].start == num_tokens - 1
    assert len(victim.pages) == num_pages + 1  # the next token's page too
    assert victim.state is _S.RUNNING


def test_what_is_still_cached_is_not_copied_back() -> None:
    rig = Rig(num_blocks=6)
    rig.run(1, 3)
    victim = rig.run(2, 7)
    while not rig.scheduler.retracted:
        rig.step()
    num_full = victim.num_kv_tokens // 4
    assert num_full >= 1
    rig.scheduler.remove(rig.scheduler.running[room(1)])
    cached = rig.scheduler.ledger.lookup(victim.hashes)
    plan = rig.plan()
    assert plan is not None
    (swap,) = of_type(plan.swaps, SwapIn)
    assert swap.first_block == len(cached) >= 1
    assert victim.pages[: len(cached)] == cached
    assert len(cached) + len(swap.pages) == -(-victim.num_kv_tokens // 4)


def test_blocks_that_were_evicted_meanwhile_are_findable_again() -> None:
    rig = Rig(num_blocks=6)
    rig.run(1, 3)
    victim = rig.run(2, 7)
    while not rig.scheduler.retracted:
        rig.step()
    rig.scheduler.ledger.flush_cache()
    rig.scheduler.remove(rig.scheduler.running[room(1)])
    rig.step()
    num_full = victim.num_kv_tokens // 4
    assert num_full >= 1
    assert rig.scheduler.ledger.lookup(victim.hashes) == victim.pages[:num_full]


def test_the_oldest_always_ends_and_all_others_after_it() -> None:
    rig = Rig(num_blocks=6, prefix_caching=False)
    for number in (1, 2, 3):
        rig.run(number, 3)
    ended = []
    for _ in range(80):
        rig.step()
        for request in list(rig.scheduler.running.values()):
            if len(request.token_ids) >= 20:
                ended.append(int.from_bytes(request.room, "big"))
                assert rig.scheduler.remove(request) is False
    assert ended == [1, 2, 3]
    assert rig.scheduler.num_retractions > 0
    assert rig.counts == {"free": 6}


def test_the_retracted_come_back_only_when_those_before_them_can_still_grow() -> None:
    rig = Rig(num_blocks=5, prefix_caching=False)
    for number in (1, 2, 3):
        rig.run(number, 3)
    while rig.numbers(rig.scheduler.retracted) != [2, 3]:
        rig.step()
    rig.scheduler.remove(rig.scheduler.running[room(1)])
    rig.step()
    assert rig.numbers(rig.scheduler.running) == [2]  # of 5 pages 2 has 3; 3 wants the rest
    assert rig.numbers(rig.scheduler.retracted) == [3]
    rig.start(4, 1)
    rig.plan()
    assert rig.numbers(rig.scheduler.admitting) == [4]  # it would fit, but 3 was before it
    rig.scheduler.remove(rig.scheduler.running[room(2)])
    rig.step()
    assert rig.numbers(rig.scheduler.running) == [3]


def test_a_lone_request_gives_way_to_pages_that_a_peer_writes() -> None:
    rig = Rig(num_blocks=4, prefix_caching=False)
    request = rig.run(1, 4)
    receiving = rig.start(2, 6)
    rig.plan()
    assert rig.numbers(rig.scheduler.receiving) == [2]
    for _ in range(5):
        rig.step()
    assert rig.numbers(rig.scheduler.retracted) == [1]
    assert rig.plan() is None  # nothing runs until the transfer ends
    rig.commit(receiving)
    rig.step()
    rig.scheduler.remove(receiving)
    rig.step()
    assert rig.scheduler.running == {room(1): request}


@pytest.mark.parametrize("group", ["admitting", "receiving", "running", "retracted"])
def test_a_request_can_be_removed_from_every_group(group: str) -> None:
    rig = crowded()
    rig.step()  # 1 runs, 2 is retracted
    if group == "admitting":
        request = rig.start(3, 2)
    elif group == "receiving":
        rig = Rig()
        request = rig.start(3, 2)
        rig.plan()
    else:
        request = next(iter(getattr(rig.scheduler, group).values()))
    assert rig.scheduler.remove(request) == (group == "receiving")
    rig.scheduler.validate()
    assert request.room not in getattr(rig.scheduler, group)
    with pytest.raises(IllegalTransition):
        rig.scheduler.remove(request)

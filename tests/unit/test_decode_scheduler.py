"""Who is admitted, who decodes, who gives way and comes back."""

import pytest

from bootstrap.errors import IllegalTransition
from decode.request import TRANSITIONS, DecodeEvent, DecodeRequest, DecodeState
from engine.patience import MAX_PASSED, MAX_PASSED_S
from tests.support.cores import decode_dispatch, room
from tests.support.scheduler_rig import Rig

_S, _E = DecodeState, DecodeEvent


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

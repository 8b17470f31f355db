"""Who gives way when pages run out, and how it comes back."""

import pytest

from bootstrap.errors import IllegalTransition
from decode.request import DecodeEvent, DecodeState
from engine.core import SwapIn, SwapOut
from tests.support.cores import of_type, room
from tests.support.scheduler_rig import Rig

_S, _E = DecodeState, DecodeEvent


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

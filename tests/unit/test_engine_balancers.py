"""Whose rooms an engine ends: balancers that left, and those that were heard only once."""

import pytest

from bootstrap.identity import WorkerRef
from bootstrap.messages import Ping
from engine.balancers import MAX_DEAD, WATCH_S, Balancers
from engine.core import BalancerIsMember, PeerJoined, PeerLeft, Received
from tests.support.cores import (
    BALANCER,
    DECODE_INFO,
    PREFILL,
    decode_dispatch,
    peer,
    prefill_dispatch,
    prompt,
)

REF = BALANCER.ref
DISPATCHES = [prefill_dispatch(1, prompt(4)), decode_dispatch(1, prompt(4))]
NOBODY: frozenset[WorkerRef] = frozenset()


def known() -> Balancers:
    """One balancer is a member."""
    balancers = Balancers()
    assert balancers.handle(BalancerIsMember(REF), 0.0) == NOBODY
    return balancers


@pytest.mark.parametrize("dead", [False, True])
def test_a_member_that_left_is_lost_once(dead: bool) -> None:
    balancers = known()
    assert balancers.handle(PeerLeft(REF, dead), 1.0) == {REF}
    assert balancers.handle(PeerLeft(REF, True), 2.0) == NOBODY
    assert balancers.unheard(1e6) == NOBODY
    assert balancers.is_dead(REF)
    assert balancers.num_lost == 1


def test_an_engine_that_left_is_no_balancer() -> None:
    balancers = known()
    balancers.handle(PeerJoined(DECODE_INFO), 0.0)
    assert balancers.handle(PeerLeft(PREFILL.ref, True), 0.0) == NOBODY
    assert balancers.num_lost == 0


def test_a_member_is_never_lost_by_silence() -> None:
    balancers = known()
    for dispatch in DISPATCHES:
        balancers.handle(Received(BALANCER, dispatch), 0.0)
    assert balancers.unheard(1e6) == NOBODY


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_stranger_has_some_time_to_become_a_member(dispatch: object) -> None:
    balancers = Balancers()
    balancers.handle(Received(BALANCER, dispatch), 1.0)
    assert balancers.unheard(1.0 + WATCH_S - 0.1) == NOBODY
    assert balancers.unheard(1.0 + WATCH_S) == {REF}
    assert balancers.unheard(1.0 + WATCH_S) == NOBODY
    balancers.handle(Received(BALANCER, dispatch), 20.0)
    balancers.handle(BalancerIsMember(REF), 21.0)
    assert balancers.unheard(1e6) == NOBODY


def test_one_whose_lease_ran_out_is_served_while_it_is_heard() -> None:
    balancers = known()
    balancers.handle(PeerLeft(REF, dead=False), 0.0)
    assert not balancers.is_dead(REF)
    balancers.handle(Received(BALANCER, Ping()), 0.5)
    assert balancers.unheard(1e6) == NOBODY, "nothing is done for who only asks"
    for now, message in ((1.0, DISPATCHES[0]), (1.0 + WATCH_S - 1, Ping())):
        balancers.handle(Received(BALANCER, message), now)
        balancers.handle(Received(PREFILL, Ping()), now)
        assert balancers.unheard(now + WATCH_S - 0.1) == NOBODY
    assert balancers.handle(PeerLeft(REF, dead=True), 12.0) == {REF}


def test_the_dead_are_not_put_on_watch_and_not_remembered_for_ever() -> None:
    balancers = known()
    balancers.handle(PeerLeft(REF, dead=True), 0.0)
    balancers.handle(Received(BALANCER, DISPATCHES[0]), 1.0)
    assert balancers.unheard(1e6) == NOBODY
    assert balancers.is_dead(REF)
    for number in range(MAX_DEAD):
        balancers.handle(PeerLeft(peer("lb", number + 1).ref, dead=True), 1.0)
    assert not balancers.is_dead(REF)

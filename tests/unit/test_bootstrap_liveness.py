"""Who is out of reach: decided from answers and a clock that tests move."""

from bootstrap.identity import Peer
from bootstrap.liveness import ASK_EVERY_S, PAUSE_S, PROBATION_S, SILENCE_S, Liveness
from tests.support.bootstrap_facts import make_peer, make_ref

A, B = make_peer(make_ref("a", 1)), make_peer(make_ref("b", 2))
STEP_S = 0.1


class Rig:
    """Looks ten times a second; `mute` do not answer."""

    def __init__(self, *awaited: Peer) -> None:
        self.liveness, self.now = Liveness(), 0.0
        self.awaited, self.mute = list(awaited), set[Peer]()
        self.asked: list[Peer] = []
        self.lost_at: dict[Peer, float] = {}
        self.back_at: dict[Peer, float] = {}

    def run(self, seconds: float) -> "Rig":
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            asks, lost = self.liveness.look(self.awaited, self.now)
            self.asked += asks
            self.lost_at |= {p: self.now for p in (A, B) if p.ref in lost}
            for peer in asks:
                if peer not in self.mute and self.liveness.answered(peer.ref, self.now):
                    self.back_at[peer] = self.now
        return self


def test_who_answers_is_asked_again_and_again_and_never_lost() -> None:
    rig = Rig(A, B).run(10)
    assert 9 <= rig.asked.count(A) <= 10 / ASK_EVERY_S
    assert rig.lost_at == {}


def test_who_does_not_answer_is_lost_once_and_in_time() -> None:
    rig = Rig(A, B).run(5)
    rig.mute = {A}
    silent_since = rig.now
    rig.run(20)
    assert rig.lost_at.keys() == {A}
    assert (
        SILENCE_S - ASK_EVERY_S - STEP_S <= rig.lost_at[A] - silent_since < SILENCE_S + 2 * STEP_S
    )
    assert rig.liveness.lost == {A.ref}


def test_what_is_lost_is_asked_on_though_nobody_waits_and_is_back_when_it_answers() -> None:
    rig = Rig(A)
    rig.mute = {A}
    rig.run(5)
    rig.awaited, rig.asked = [], []
    rig.run(5)
    assert rig.asked.count(A) >= 4
    rig.mute = set()
    rig.run(2)
    assert A in rig.back_at
    assert rig.liveness.lost == frozenset()
    rig.asked = []
    rig.run(5)
    assert rig.asked == []


def test_waiting_anew_begins_anew() -> None:
    rig = Rig(A).run(2)
    rig.awaited, rig.mute = [], {A}
    rig.run(10)
    rig.awaited = [A]
    rig.run(SILENCE_S - 2 * STEP_S)
    assert rig.lost_at == {}
    rig.run(3 * STEP_S)
    assert A in rig.lost_at


def test_who_was_lost_and_is_waited_for_anew_is_asked_at_once_and_soon_lost_again() -> None:
    rig = Rig(A)
    rig.mute = {A}
    rig.run(5)
    rig.awaited = []
    rig.run(5)
    rig.awaited, rig.asked, rig.lost_at = [A], [], {}
    began = rig.now
    rig.run(STEP_S)
    assert rig.asked == [A]
    assert rig.liveness.lost == frozenset()
    rig.run(PROBATION_S + STEP_S)
    assert rig.lost_at[A] - began <= PROBATION_S + 2 * STEP_S


def test_a_pause_of_our_own_is_nobody_elses_silence() -> None:
    rig = Rig(A).run(2)
    rig.now += 60.0 * PAUSE_S
    rig.run(2)
    assert rig.lost_at == {}
    rig.mute = {A}
    rig.run(SILENCE_S + 1)
    assert A in rig.lost_at


def test_the_dead_are_forgotten() -> None:
    rig = Rig(A)
    rig.mute = {A}
    rig.run(5)
    rig.liveness.forget(A.ref)
    assert rig.liveness.lost == frozenset()
    assert not rig.liveness.answered(A.ref, rig.now)

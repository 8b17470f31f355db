"""A prefill engine that a decode engine cannot reach: rooms that need it end, all others go on."""

import pytest
from msgspec.structs import replace

from bootstrap.messages import FailureReason, LegFailed, Ping, Pong
from decode.partners import MAX_GONE, SILENCE_S, Partners
from tests.support.cores import BALANCER, PREFILL, PREFILL_INFO, peer, sent
from tests.support.decode_rig import STATES, DecodeRig, rig_in

TICK_S = 0.1
WAITING = ("expected", "admitting", "receiving")


def run(rig: DecodeRig, seconds: float, *, answers: bool) -> list[object]:
    """Tick, and answer questions or not; all that was put out."""
    out: list[object] = []
    for _ in range(round(seconds / TICK_S)):
        new = rig.tick(rig.now + TICK_S)
        out += new
        if answers and sent(new, Ping, PREFILL):
            rig.receive(Pong())
    return out


@pytest.mark.parametrize("state", STATES)
def test_silence_ends_exactly_the_rooms_that_need_the_prefill_engine(state: str) -> None:
    rig = rig_in(state)
    out = run(rig, SILENCE_S + 1.0, answers=False)
    failures = [f for f in sent(out, LegFailed, BALANCER) if isinstance(f, LegFailed)]
    if state in WAITING:
        assert [f.reason for f in failures] == [FailureReason.PEER_LOST]
    else:
        assert failures == []
        assert sent(out, Ping, PREFILL) == []


@pytest.mark.parametrize("state", WAITING)
def test_who_answers_may_take_its_time(state: str) -> None:
    rig = rig_in(state)
    out = run(rig, 3 * SILENCE_S, answers=True)
    assert sent(out, LegFailed, BALANCER) == []
    assert len(sent(out, Ping, PREFILL)) >= 10


def test_lives_that_nobody_ever_saw_die_are_not_remembered_for_ever() -> None:
    partners = Partners()
    lives = [peer("p", life=life).ref for life in range(MAX_GONE + 3)]
    for life, ref in enumerate(lives):
        partners.joined(replace(PREFILL_INFO, peer=peer("p", life=life)))
        partners.left(ref, dead=False)  # replaced: it may be stopped
    assert [partners.is_known(ref) for ref in lives[:4]] == [False, False, False, True]
    assert partners.is_known(lives[-1])

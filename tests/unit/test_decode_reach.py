"""A prefill engine that a decode engine cannot reach: rooms that need it end, all others go on."""

import pytest

from bootstrap.messages import FailureReason, LegFailed, Ping, Pong
from decode.partners import SILENCE_S
from tests.support.cores import BALANCER, PREFILL, sent
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

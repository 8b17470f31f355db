"""How rooms end in the prefill core: refusals, aborts, deadlines and faults, in every state."""

import pytest

from bootstrap.messages import AbortRoom, FailureReason, LegFailed, PrefillStarted, WriterStopped
from engine.balancers import WATCH_S
from engine.core import BalancerIsMember, PeerLeft, Received
from engine.step import NumericalFault, SampledToken
from prefill.core import PrefillCore
from prefill.handoffs import EndTransfer, PromptComputed, TransferClosed
from tests.support.cores import (
    BALANCER,
    DECODE,
    STRANGER,
    limits,
    of_type,
    peer,
    prefill_dispatch,
    prompt,
    room,
    sampling,
    sent,
    step,
)

_F = FailureReason
STATES = ["queued", "computing", "sending", "closing"]


def in_state(state: str) -> PrefillCore:
    """A core whose room 1 is in `state`; nothing else is there."""
    core = PrefillCore(limits())
    core.handle(BalancerIsMember(BALANCER.ref), 0.0)
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(12))), 0.0)
    if state != "queued":
        step(core)
    if state in ("sending", "closing"):
        step(core)
    if state == "closing":
        core.handle(Received(DECODE, AbortRoom(room(1), _F.CANCELLED)), 0.0)
    core.validate()
    core.drain()
    return core


def close(core: PrefillCore, state: str) -> None:
    """The transfer's end, where one was opened; then nothing may be left."""
    if state != "queued":
        assert core.load().num_rooms == 1
        core.handle(TransferClosed(room(1)), 0.0)
    core.validate()
    assert core.load().num_rooms == 0
    assert core.ledger.num_available == 16
    core.drain()
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(12))), 1.0)
    assert core.load().num_rooms == 0, "a late dispatch revived the room"
    assert core.drain() == []


@pytest.mark.parametrize("state", STATES)
def test_the_decode_engine_aborts(state: str) -> None:
    core = in_state(state)
    core.handle(Received(DECODE, AbortRoom(room(1), _F.QUEUE_FULL)), 0.0)
    out = core.drain()
    if state == "closing":
        assert out == []
    else:
        assert sent(out, LegFailed) == [LegFailed(room(1), _F.PEER_ABORTED, "queue_full")]
        assert len(of_type(out, EndTransfer)) == (state != "queued")
    close(core, state)


@pytest.mark.parametrize("state", STATES)
def test_the_balancer_aborts(state: str) -> None:
    core = in_state(state)
    core.handle(Received(BALANCER, AbortRoom(room(1), _F.CANCELLED)), 0.0)
    out = core.drain()
    assert sent(out, LegFailed) == []  # it knows
    assert sent(out, AbortRoom, DECODE) == [AbortRoom(room(1), _F.CANCELLED)]
    assert len(of_type(out, EndTransfer)) == (state in ("computing", "sending"))
    close(core, state)


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_the_balancer_is_gone(state: str, dead: bool) -> None:
    core = in_state(state)
    core.handle(PeerLeft(peer("lb", 7).ref, dead), 0.0)
    assert core.drain() == []
    core.handle(PeerLeft(BALANCER.ref, dead), 0.0)
    out = core.drain()
    if state != "closing":
        (failure,) = sent(out, LegFailed, BALANCER)
        assert failure.reason is _F.BALANCER_LOST
        assert sent(out, AbortRoom, DECODE) == [AbortRoom(room(1), _F.PEER_ABORTED)]
    assert len(of_type(out, EndTransfer)) == (state in ("computing", "sending"))
    close(core, state)
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(12))), 1.0)
    assert core.load().num_rooms == (not dead), "the silent may come back, the dead may not"


@pytest.mark.parametrize("state", STATES)
def test_a_balancer_that_never_becomes_a_member(state: str) -> None:
    core = in_state(state)
    core.handle(Received(STRANGER, prefill_dispatch(2, prompt(4), reply_to=STRANGER)), 0.0)
    core.tick(WATCH_S)
    assert [f.reason for f in sent(core.drain(), LegFailed, STRANGER)] == [_F.BALANCER_LOST]
    core.validate()
    assert core.load().num_rooms == 1


@pytest.mark.parametrize("state", STATES)
def test_a_stranger_aborts_nothing(state: str) -> None:
    core = in_state(state)
    core.handle(Received(STRANGER, AbortRoom(room(1), _F.CANCELLED)), 0.0)
    assert core.drain() == []
    assert core.load().num_rooms == 1


@pytest.mark.parametrize("state", STATES)
def test_the_deadline_passes(state: str) -> None:
    core = in_state(state)
    core.tick(99.9)
    assert sent(core.drain(), LegFailed) == []
    core.tick(100.0)
    out = core.drain()
    if state == "closing":
        assert sent(out, LegFailed) == []
    else:
        (failure,) = sent(out, LegFailed, BALANCER)
        assert failure.reason is _F.DEADLINE
        assert sent(out, AbortRoom, DECODE) == [AbortRoom(room(1), _F.PEER_ABORTED)]
    core.tick(101.0)
    assert sent(core.drain(), LegFailed) == []
    close(core, state)


@pytest.mark.parametrize("state", STATES)
def test_the_engine_shuts_down(state: str) -> None:
    core = in_state(state)
    core.shut_down(0.0)
    reasons = [failure.reason for failure in sent(core.drain(), LegFailed)]
    assert reasons == ([] if state == "closing" else [_F.DRAINING])
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(4))), 0.0)
    out = core.drain()
    assert [failure.reason for failure in sent(out, LegFailed)] == [_F.DRAINING]
    assert sent(out, AbortRoom, DECODE) == [AbortRoom(room(2), _F.PEER_ABORTED)]
    close(core, state)


def test_an_end_while_closing_waits_for_the_writes() -> None:
    core = in_state("closing")
    assert core.ledger.counts()["leased"] == 3
    assert core.plan(0.0) is None
    close(core, "closing")


def test_an_aborted_prompt_leaves_the_step_and_lets_the_next_one_in() -> None:
    core = in_state("computing")
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(4, first=50))), 0.0)
    core.handle(Received(BALANCER, AbortRoom(room(1), _F.CANCELLED)), 0.0)
    plan = step(core)
    assert plan is not None
    assert plan.rooms == (room(2),)


@pytest.mark.parametrize(
    ("num_tokens", "overrides", "reason"),
    [
        (0, {}, _F.BAD_REQUEST),
        (4, {"output_offset": 4}, _F.BAD_REQUEST),
        (4, {"sampling": sampling(2), "output_offset": 2}, _F.BAD_REQUEST),
        (4, {"decode": None}, _F.BAD_REQUEST),
        (64, {}, _F.TOO_LARGE),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    num_tokens: int, overrides: dict, reason: FailureReason
) -> None:
    core = PrefillCore(limits())
    dispatch = prefill_dispatch(1, prompt(num_tokens), **overrides)
    core.handle(Received(BALANCER, dispatch), 0.0)
    out = core.drain()
    assert [failure.reason for failure in sent(out, LegFailed, BALANCER)] == [reason]
    aborts = sent(out, AbortRoom, DECODE)
    assert aborts == ([] if dispatch.decode is None else [AbortRoom(room(1), _F.PEER_ABORTED)])
    assert core.load().num_rooms == 0
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(4))), 0.0)
    assert core.load().num_rooms == 0, "a refused room came back"


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    core = PrefillCore(limits(num_blocks=4))
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(17))), 0.0)
    assert [f.reason for f in sent(core.drain(), LegFailed)] == [_F.TOO_LARGE]
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(16))), 0.0)
    assert step(core) is not None


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    core = PrefillCore(limits())
    core.handle(Received(BALANCER, prefill_dispatch(1, (1, 100, 2))), 0.0)
    assert [f.reason for f in sent(core.drain(), LegFailed)] == [_F.BAD_REQUEST]


def test_a_full_queue_refuses_and_says_how_full() -> None:
    core = PrefillCore(limits(max_queue=2))
    for number in (1, 2, 3):
        core.handle(Received(BALANCER, prefill_dispatch(number, prompt(4))), 0.0)
    (failure,) = sent(core.drain(), LegFailed)
    assert (failure.room, failure.reason) == (room(3), _F.QUEUE_FULL)
    assert "2 requests" in failure.detail


def test_a_repeated_dispatch_is_one_room() -> None:
    core = in_state("computing")
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(12))), 0.0)
    assert core.drain() == []
    assert core.load().num_rooms == 1


def test_an_abort_that_overtakes_its_dispatch_wins() -> None:
    core = PrefillCore(limits())
    core.handle(Received(DECODE, AbortRoom(room(1), _F.QUEUE_FULL)), 0.0)
    assert sent(core.drain(), WriterStopped, DECODE) == [WriterStopped(room(1), 0, cut=True)]
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(4))), 0.0)
    assert core.plan(0.0) is None
    assert sent(core.drain(), PrefillStarted) == []


def test_nan_ends_one_room_and_its_neighbours_go_on() -> None:
    core = PrefillCore(limits())
    for number in (1, 2):
        core.handle(Received(BALANCER, prefill_dispatch(number, prompt(4, first=20 * number))), 0.0)
    plan = core.plan(0.0)
    assert plan is not None
    core.complete(plan, [NumericalFault("NaN in logits"), SampledToken(7, 0.0)], 0.0)
    core.validate()
    out = core.drain()
    assert sent(out, LegFailed) == [LegFailed(room(1), _F.NUMERICAL, "NaN in logits")]
    assert [each.room for each in of_type(out, PromptComputed)] == [room(2)]


def test_a_step_that_raised_ends_its_rooms_only() -> None:
    core = in_state("computing")
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(12, first=50))), 0.0)
    core.handle(Received(BALANCER, prefill_dispatch(3, prompt(4, first=70))), 0.0)
    plan = core.plan(0.0)
    assert plan is not None
    assert plan.rooms == (room(1), room(2))
    core.step_failed(plan, "RuntimeError in the model step", 0.0)
    core.validate()
    failures = sent(core.drain(), LegFailed)
    assert [(f.room, f.reason) for f in failures] == [
        (room(1), _F.INTERNAL),
        (room(2), _F.INTERNAL),
    ]
    plan = step(core)
    assert plan is not None
    assert plan.rooms == (room(3),)


def test_a_closed_transfer_before_its_room_ended_changes_nothing() -> None:
    core = in_state("computing")
    core.handle(TransferClosed(room(1)), 0.0)
    core.validate()
    assert core.load().num_running == 1


def test_a_long_detail_fits_the_wire() -> None:
    core = in_state("computing")
    plan = core.plan(0.0)
    assert plan is not None
    core.step_failed(plan, "x" * 5000, 0.0)
    (failure,) = sent(core.drain(), LegFailed)
    assert len(failure.detail) == 1024

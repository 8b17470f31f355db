"""Engines that leave: what a drain refuses, what it waits for, and when it is over."""

from bootstrap.membership import WorkerState
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    HandoffRecord,
    LegFailed,
    PrefillStarted,
    TokenBatch,
    WriterStopped,
)
from decode.core import DecodeCore
from engine.core import PeerJoined, Received
from engine.draining import REFUSING_S, Draining
from kv_transfer.prefix import prompt_digest
from prefill.core import PrefillCore
from prefill.handoffs import TransferClosed
from tests.support.cores import (
    BALANCER,
    DECODE,
    PREFILL,
    PREFILL_INFO,
    decode_dispatch,
    limits,
    prefill_dispatch,
    prompt,
    room,
    sampling,
    sent,
    step,
)


def test_a_drain_lasts_until_nothing_is_left_and_late_dispatches_have_been_refused() -> None:
    drain = Draining.begin(30.0, now=10.0)
    assert not drain.is_over(idle=True, now=10.0)
    assert drain.is_over(idle=True, now=10.0 + REFUSING_S)
    assert not drain.is_over(idle=False, now=39.9)
    assert drain.account(0, 11.25) == "drained in 1.2 s, every room finished here"


def test_a_drain_is_over_at_its_deadline_whatever_is_left() -> None:
    drain = Draining.begin(0.0, now=10.0)
    assert drain.is_over(idle=False, now=10.0)
    assert "1 room was not done at the deadline" in drain.account(1, 10.0)
    assert "3 rooms were not done at the deadline" in drain.account(3, 10.0)


def test_a_draining_prefill_engine_refuses_new_rooms_and_waits_until_handoffs_are_accepted() -> (
    None
):
    core = PrefillCore(limits())
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(5))), 0.0)
    core.take_no_more()
    assert core.load().state is WorkerState.DRAINING
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(5))), 0.0)
    out = core.drain()
    (refusal,) = sent(out, LegFailed, BALANCER)
    assert (refusal.room, refusal.reason) == (room(2), FailureReason.DRAINING)
    assert [abort.room for abort in sent(out, AbortRoom, DECODE)] == [room(2)]
    step(core)  # room 1 goes on
    assert len(sent(core.drain(), TokenBatch, BALANCER)) == 1
    assert not core.idle  # its decode engine has not accepted it
    core.handle(TransferClosed(room(1)), 1.0)
    assert core.idle


def test_what_a_prefill_engine_has_left_at_the_end_goes_elsewhere() -> None:
    core = PrefillCore(limits())
    core.handle(Received(BALANCER, prefill_dispatch(1, prompt(5))), 0.0)
    core.take_no_more()
    core.shut_down(30.0)
    (failed,) = sent(core.drain(), LegFailed, BALANCER)
    assert (failed.room, failed.reason) == (room(1), FailureReason.DRAINING)


def running_decode() -> DecodeCore:
    core = DecodeCore(limits())
    token_ids = prompt(5)
    core.handle(PeerJoined(PREFILL_INFO), 0.0)
    dispatch = decode_dispatch(1, token_ids, sampling=sampling(max_tokens=3))
    core.handle(Received(BALANCER, dispatch), 0.0)
    core.handle(Received(PREFILL, PrefillStarted(room(1))), 0.0)
    core.plan(0.0)
    return core


def hand_off(core: DecodeCore) -> None:
    record = HandoffRecord(
        room=room(1),
        epoch=1,
        token_id=7,
        position=0,
        num_prompt_tokens=5,
        prompt_digest=prompt_digest(prompt(5)),
    )
    core.handle(Received(PREFILL, record), 0.0)


def test_a_draining_decode_engine_finishes_what_it_expects_and_refuses_what_is_new() -> None:
    core = running_decode()
    core.take_no_more()
    core.handle(Received(BALANCER, decode_dispatch(2, prompt(5))), 0.0)
    out = core.drain()
    (refusal,) = sent(out, LegFailed, BALANCER)
    assert (refusal.room, refusal.reason) == (room(2), FailureReason.DRAINING)
    assert [abort.room for abort in sent(out, AbortRoom, PREFILL)] == [room(2)]
    hand_off(core)
    assert not core.idle
    for _ in range(2):
        step(core)
    assert core.idle


def test_a_decode_engine_is_not_idle_while_a_writer_may_write() -> None:
    core = running_decode()
    core.take_no_more()
    core.handle(Received(BALANCER, AbortRoom(room(1), FailureReason.CANCELLED)), 0.0)
    assert core.load().num_rooms == 0
    assert not core.idle
    core.handle(Received(PREFILL, WriterStopped(room(1), 1)), 0.0)
    assert core.idle

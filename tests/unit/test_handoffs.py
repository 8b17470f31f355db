"""Rooms being handed off: manifests, writes, records, and when the engine's pages are free again."""

import pytest

from bootstrap.messages import (
    FailureReason,
    HandoffAccepted,
    HandoffRecord,
    Manifest,
    PrefillStarted,
    WriterStopped,
)
from prefill.handoffs import (
    RESEND_INTERVAL_S,
    SILENCE_S,
    STALL_S,
    BlocksComputed,
    Connect,
    Disconnect,
    Handoffs,
    OpenTransfer,
    PromptComputed,
    Submit,
    TransferClosed,
    TransferFailed,
)
from tests.support.cores import DECODE, DECODE_INFO, STRANGER, of_type, peer, room, sent

R = room(1)
AGENT = DECODE_INFO.transfer.agent_name
RECORD = HandoffRecord(R, 1, 7, 0, 10, b"d" * 16)
MANIFEST = Manifest(R, 4, 0, (20, 21, 22))


def opened(*, joined: bool = True) -> Handoffs:
    """Room 1 with three pages is open."""
    handoffs = Handoffs()
    if joined:
        handoffs.decode_joined(DECODE_INFO)
    handoffs.open(OpenTransfer(R, DECODE, (10, 11, 12)))
    handoffs.drain()
    return handoffs


def streaming() -> Handoffs:
    """Write 0 with the first block is in flight."""
    handoffs = opened()
    handoffs.blocks_computed(BlocksComputed(R, 1))
    handoffs.manifest(DECODE, MANIFEST)
    handoffs.drain()
    return handoffs


def committed() -> Handoffs:
    """All is written and the record is out."""
    handoffs = streaming()
    handoffs.prompt_computed(PromptComputed(R, RECORD))
    handoffs.written(R, 0, None)
    handoffs.written(R, 1, None)
    handoffs.validate()
    handoffs.drain()
    return handoffs


def test_a_handoff_from_open_to_accepted() -> None:
    handoffs = opened()
    handoffs.blocks_computed(BlocksComputed(R, 1))
    assert handoffs.drain() == []
    handoffs.manifest(DECODE, MANIFEST)
    assert handoffs.drain() == [Submit(R, 0, AGENT, ((10, 20),))]
    handoffs.prompt_computed(PromptComputed(R, RECORD))
    assert handoffs.drain() == [Submit(R, 1, AGENT, ((11, 21), (12, 22)))]
    handoffs.written(R, 0, None)
    assert handoffs.drain() == []
    handoffs.written(R, 1, None)
    out = handoffs.drain()
    record = HandoffRecord(R, 4, 7, 0, 10, b"d" * 16)
    assert sent(out, HandoffRecord, DECODE) == [record]  # with the manifest's epoch
    assert of_type(out, TransferClosed) == [TransferClosed(R)]
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    assert len(handoffs) == 0
    assert handoffs.drain() == []


def test_a_decode_engine_that_joins_is_connected_to_and_one_that_left_is_not() -> None:
    handoffs = Handoffs()
    handoffs.decode_joined(DECODE_INFO)
    assert handoffs.drain() == [Connect(DECODE_INFO.transfer)]
    handoffs.decode_left(DECODE.ref)
    assert handoffs.drain() == [Disconnect(AGENT)]
    handoffs.decode_left(DECODE.ref)
    assert handoffs.drain() == []


def test_a_manifest_before_the_decode_engine_is_known_waits_for_it() -> None:
    handoffs = opened(joined=False)
    handoffs.blocks_computed(BlocksComputed(R, 1))
    handoffs.manifest(DECODE, MANIFEST)
    assert handoffs.drain() == []
    handoffs.decode_joined(DECODE_INFO)
    assert of_type(handoffs.drain(), Submit) == [Submit(R, 0, AGENT, ((10, 20),))]


def test_a_room_that_ended_before_its_waiting_manifest_was_used_says_stopped() -> None:
    handoffs = opened(joined=False)
    handoffs.manifest(DECODE, MANIFEST)
    handoffs.end(R)
    out = handoffs.drain()
    assert sent(out, WriterStopped, DECODE) == [WriterStopped(R, 4)]
    assert of_type(out, TransferClosed) == [TransferClosed(R)]


def test_a_repeated_manifest_and_another_workers_change_nothing() -> None:
    handoffs = opened()
    handoffs.manifest(STRANGER, MANIFEST)
    handoffs.manifest(peer("d", life=1), MANIFEST)
    handoffs.blocks_computed(BlocksComputed(R, 1))
    assert handoffs.drain() == []
    handoffs.manifest(DECODE, MANIFEST)
    handoffs.manifest(DECODE, MANIFEST)
    handoffs.manifest(DECODE, Manifest(R, 5, 0, (30, 31, 32)))
    assert handoffs.drain() == [Submit(R, 0, AGENT, ((10, 20),))]


@pytest.mark.parametrize("manifest", [Manifest(R, 4, 0, (20,)), Manifest(R, 4, 2, (20, 21))])
def test_a_manifest_of_a_wrong_extent_fails_the_room(manifest: Manifest) -> None:
    handoffs = opened()
    handoffs.manifest(DECODE, manifest)
    out = handoffs.drain()
    assert [each.reason for each in of_type(out, TransferFailed)] == [
        FailureReason.HANDOFF_REJECTED
    ]
    assert of_type(out, TransferClosed) == [TransferClosed(R)]
    assert sent(out, WriterStopped, DECODE) == [WriterStopped(R, 4)]
    assert len(handoffs) == 0


def test_a_manifest_for_an_unknown_room_is_answered_at_once() -> None:
    handoffs = Handoffs()
    handoffs.manifest(DECODE, MANIFEST)
    assert sent(handoffs.drain(), WriterStopped, DECODE) == [WriterStopped(R, 4)]


def test_an_ended_room_answers_when_its_last_write_is_over() -> None:
    handoffs = streaming()
    handoffs.end(R)
    assert handoffs.drain() == []
    handoffs.validate()
    handoffs.blocks_computed(BlocksComputed(R, 2))
    handoffs.prompt_computed(PromptComputed(R, RECORD))
    assert handoffs.drain() == []
    handoffs.written(R, 0, None)
    out = handoffs.drain()
    assert sent(out, WriterStopped, DECODE) == [WriterStopped(R, 4)]
    assert of_type(out, TransferClosed) == [TransferClosed(R)]
    assert len(handoffs) == 0


def test_a_failed_write_fails_the_room_and_waits_for_the_others() -> None:
    handoffs = streaming()
    handoffs.blocks_computed(BlocksComputed(R, 2))
    handoffs.drain()
    handoffs.written(R, 0, "link down")
    assert handoffs.drain() == [TransferFailed(R, FailureReason.TRANSFER_FAILED, "link down")]
    handoffs.written(R, 1, None)
    out = handoffs.drain()
    assert of_type(out, TransferClosed) == [TransferClosed(R)]
    assert sent(out, WriterStopped) == [WriterStopped(R, 4, cut=True)]
    assert sent(out, HandoffRecord) == []


def test_writes_to_a_silent_decode_engine_are_not_cut_off() -> None:
    handoffs = streaming()
    handoffs.decode_left(DECODE.ref, dead=False)
    out = handoffs.drain()
    assert [each.reason for each in of_type(out, TransferFailed)] == [FailureReason.PEER_LOST]
    assert of_type(out, Disconnect) == []
    assert of_type(out, TransferClosed) == []
    handoffs.written(R, 0, None)  # it woke up
    out = handoffs.drain()
    assert of_type(out, TransferClosed) == [TransferClosed(R)]
    assert sent(out, WriterStopped) == [WriterStopped(R, 4)]
    handoffs.decode_left(DECODE.ref, dead=True)
    assert handoffs.drain() == [Disconnect(AGENT)]


def test_a_room_whose_writes_do_not_move_is_given_up_but_its_pages_stay() -> None:
    handoffs = streaming()
    handoffs.tick(STALL_S - 0.1)
    assert of_type(handoffs.drain(), TransferFailed) == []
    handoffs.tick(STALL_S)
    (failed,) = of_type(handoffs.drain(), TransferFailed)
    assert failed.reason is FailureReason.TRANSFER_FAILED
    handoffs.tick(9 * STALL_S)
    out = handoffs.drain()
    assert of_type(out, TransferFailed) == of_type(out, TransferClosed) == []
    handoffs.written(R, 0, None)
    assert of_type(handoffs.drain(), TransferClosed) == [TransferClosed(R)]


@pytest.mark.parametrize("state", ["waiting", "streaming", "committed"])
def test_a_decode_engine_that_left_fails_its_rooms(state: str) -> None:
    handoffs = {"waiting": opened, "streaming": streaming, "committed": committed}[state]()
    handoffs.decode_left(DECODE.ref)
    out = handoffs.drain()
    assert out[0] == Disconnect(AGENT)
    assert [each.reason for each in of_type(out, TransferFailed)] == [FailureReason.PEER_LOST]
    if state == "streaming":
        assert of_type(out, TransferClosed) == []
        handoffs.written(R, 0, "connection torn down")
        assert of_type(handoffs.drain(), TransferClosed) == [TransferClosed(R)]
    else:
        assert len(of_type(out, TransferClosed)) == (state == "waiting")
    assert len(handoffs) == 0


def test_another_decode_engines_rooms_go_on() -> None:
    handoffs = streaming()
    handoffs.decode_left(peer("d", life=1).ref)
    assert handoffs.drain() == []
    assert len(handoffs) == 1


def test_a_record_is_sent_again_until_it_is_accepted() -> None:
    handoffs = committed()
    handoffs.tick(RESEND_INTERVAL_S - 0.01)
    assert sent(handoffs.drain(), HandoffRecord) == []
    handoffs.tick(RESEND_INTERVAL_S)
    handoffs.tick(RESEND_INTERVAL_S + 0.5)
    (again,) = sent(handoffs.drain(), HandoffRecord, DECODE)
    assert again.epoch == 4
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    handoffs.tick(9.0)
    assert handoffs.drain() == []


def test_only_the_decode_engine_accepts_and_only_the_epoch_that_was_sent() -> None:
    handoffs = committed()
    handoffs.accepted(DECODE, HandoffAccepted(R, 3))
    handoffs.accepted(STRANGER, HandoffAccepted(R, 4))
    assert len(handoffs) == 1
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    assert len(handoffs) == 0


def test_an_acceptance_before_the_record_changes_nothing() -> None:
    handoffs = streaming()
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    assert len(handoffs) == 1


def test_the_pages_are_given_back_once() -> None:
    handoffs = committed()
    handoffs.end(R)
    handoffs.end(R)
    handoffs.decode_left(DECODE.ref)
    assert of_type(handoffs.drain(), TransferClosed) == []


def test_a_start_that_nobody_heard_is_said_again_until_the_manifest_comes() -> None:
    handoffs = opened()
    handoffs.tick(0.0)
    assert handoffs.drain() == []
    handoffs.tick(RESEND_INTERVAL_S)
    assert sent(handoffs.drain(), PrefillStarted, DECODE) == [PrefillStarted(R)]
    handoffs.manifest(DECODE, MANIFEST)
    handoffs.tick(9.0)
    assert handoffs.drain() == []


def test_a_record_that_nobody_answers_is_given_up() -> None:
    handoffs = committed()
    handoffs.drain()
    handoffs.tick(SILENCE_S)
    assert of_type(handoffs.drain(), TransferFailed) == []
    handoffs.tick(SILENCE_S + RESEND_INTERVAL_S)
    assert len(of_type(handoffs.drain(), TransferFailed)) == 1
    assert len(handoffs) == 0


def test_events_for_rooms_that_are_gone_change_nothing() -> None:
    handoffs = Handoffs()
    handoffs.blocks_computed(BlocksComputed(R, 1))
    handoffs.prompt_computed(PromptComputed(R, RECORD))
    handoffs.written(R, 0, None)
    handoffs.end(R)
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    assert handoffs.drain() == []


def test_a_manifest_that_comes_twice_is_not_told_that_all_was_well() -> None:
    """The first answer may be lost: the second must not end a quarantine too early."""
    handoffs = streaming()
    handoffs.written(R, 0, "link down")
    handoffs.drain()
    handoffs.manifest(DECODE, MANIFEST)
    assert sent(handoffs.drain(), WriterStopped, DECODE) == [WriterStopped(R, 4, cut=True)]

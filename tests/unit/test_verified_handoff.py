"""Blocks that did not land as they were sent: asked for once more, and never decoded from."""

import pytest

from bootstrap.messages import (
    AbortRoom,
    BlocksDamaged,
    FailureReason,
    HandoffAccepted,
    HandoffRecord,
    LegFailed,
    Manifest,
    WriterStopped,
)
from decode.instructions import HandoffVerified, InboundClosed
from decode.quarantine import SETTLE_S
from decode.verifier import HandoffVerifier
from engine.core import PeerLeft, Received
from kv_transfer.digests import DIGEST_BYTES, Blocks
from prefill.handoff import Digest
from prefill.handoffs import (
    RESEND_INTERVAL_S,
    BlocksComputed,
    Handoffs,
    OpenTransfer,
    PromptComputed,
    Submit,
    TransferClosed,
    TransferFailed,
)
from tests.support.cores import (
    BALANCER,
    DECODE,
    DECODE_INFO,
    PREFILL,
    STRANGER,
    of_type,
    peer,
    room,
    sent,
)
from tests.support.decode_rig import DecodeRig

R = room(1)
AGENT = DECODE_INFO.transfer.agent_name
RECORD = HandoffRecord(R, 1, 7, 0, 10, b"d" * 16)
D0, D1, D2 = (bytes([n]) * DIGEST_BYTES for n in range(3))
_F = FailureReason

# --- the prefill engine ----------------------------------------------------------------------


def flushing() -> Handoffs:
    """Block 0 is written and digested, blocks 1 and 2 are under way."""
    handoffs = Handoffs(verify=True)
    handoffs.decode_joined(DECODE_INFO)
    handoffs.open(OpenTransfer(R, DECODE, (10, 11, 12)))
    handoffs.blocks_computed(BlocksComputed(R, 1))
    handoffs.manifest(DECODE, Manifest(R, 4, 0, (20, 21, 22)))
    (digest,) = of_type(handoffs.drain(), Digest)
    assert digest == Digest(0, Blocks(R, 4, 0, (10,)))
    handoffs.written(R, 0, None)
    handoffs.digested(digest, D0)
    handoffs.prompt_computed(PromptComputed(R, RECORD))
    return handoffs


REST = Digest(1, Blocks(R, 4, 1, (11, 12)))


def committed() -> Handoffs:
    handoffs = flushing()
    handoffs.written(R, 1, None)
    handoffs.digested(REST, D1 + D2)
    handoffs.validate()
    handoffs.drain()
    return handoffs


@pytest.mark.parametrize("digests_first", [True, False])
def test_the_record_waits_for_writes_and_digests_and_carries_these(digests_first: bool) -> None:
    handoffs = flushing()
    assert of_type(handoffs.drain(), Digest) == [REST]
    ends = [lambda: handoffs.written(R, 1, None), lambda: handoffs.digested(REST, D1 + D2)]
    first, second = reversed(ends) if digests_first else ends
    first()
    assert handoffs.drain() == []
    second()
    out = handoffs.drain()
    (record,) = sent(out, HandoffRecord, DECODE)
    assert (record.epoch, record.block_digests, record.num_resends) == (4, D0 + D1 + D2, 0)
    assert of_type(out, TransferClosed) == []


def test_pages_are_read_until_the_decode_engine_answers() -> None:
    handoffs = committed()
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    assert of_type(handoffs.drain(), TransferClosed) == [TransferClosed(R)]
    assert len(handoffs) == 0


def test_damaged_blocks_go_out_again_without_new_digests_and_then_the_record() -> None:
    handoffs = committed()
    handoffs.damaged(DECODE, BlocksDamaged(R, 4, (0, 2)))
    assert handoffs.drain() == [Submit(R, 2, AGENT, ((10, 20), (12, 22)))]
    handoffs.tick(RESEND_INTERVAL_S)
    assert sent(handoffs.drain(), HandoffRecord) == [], "the old record is no answer"
    handoffs.written(R, 2, None)
    (record,) = sent(handoffs.drain(), HandoffRecord, DECODE)
    assert (record.block_digests, record.num_resends) == (D0 + D1 + D2, 1)
    handoffs.accepted(DECODE, HandoffAccepted(R, 4))
    assert of_type(handoffs.drain(), TransferClosed) == [TransferClosed(R, num_resent=2)]


def test_a_repeated_request_and_others_change_nothing() -> None:
    handoffs = committed()
    handoffs.damaged(STRANGER, BlocksDamaged(R, 4, (0,)))
    handoffs.damaged(DECODE, BlocksDamaged(R, 3, (0,)))
    handoffs.damaged(DECODE, BlocksDamaged(room(2), 4, (0,)))
    assert handoffs.drain() == []
    handoffs.damaged(DECODE, BlocksDamaged(R, 4, (0,)))
    handoffs.damaged(DECODE, BlocksDamaged(R, 4, (0,)))
    assert len(of_type(handoffs.drain(), Submit)) == 1
    handoffs.written(R, 2, None)
    handoffs.drain()
    handoffs.damaged(DECODE, BlocksDamaged(R, 4, (0,)))
    assert handoffs.drain() == []
    handoffs.tick(9.0)
    assert len(sent(handoffs.drain(), HandoffRecord, DECODE)) == 1


def test_a_request_for_blocks_that_were_not_sent_ends_the_room() -> None:
    handoffs = committed()
    handoffs.damaged(DECODE, BlocksDamaged(R, 4, (3,)))
    out = handoffs.drain()
    assert [each.reason for each in of_type(out, TransferFailed)] == [_F.HANDOFF_REJECTED]
    assert sent(out, WriterStopped, DECODE) == [WriterStopped(R, 4)]
    assert of_type(out, TransferClosed) == [TransferClosed(R)]


@pytest.mark.parametrize("resending", [True, False])
def test_an_end_before_the_answer_says_stopped_when_nothing_is_written(resending: bool) -> None:
    handoffs = committed()
    if resending:
        handoffs.damaged(DECODE, BlocksDamaged(R, 4, (1,)))
        handoffs.end(R)
        assert sent(handoffs.drain(), WriterStopped) == []
        handoffs.written(R, 2, None)
    else:
        handoffs.end(R)
    out = handoffs.drain()
    assert sent(out, WriterStopped, DECODE) == [WriterStopped(R, 4)]
    assert len(of_type(out, TransferClosed)) == 1
    assert len(handoffs) == 0


def test_an_ended_rooms_pages_are_not_given_back_while_they_are_digested() -> None:
    handoffs = flushing()
    handoffs.end(R)
    handoffs.written(R, 1, None)
    assert of_type(handoffs.drain(), TransferClosed) == []
    handoffs.digested(REST, D1 + D2)
    assert of_type(handoffs.drain(), TransferClosed) == [TransferClosed(R)]


# --- the decode engine -----------------------------------------------------------------------


def verified(rig: DecodeRig, bad: tuple[int, ...], num_resends: int = 0) -> list[object]:
    """A record of two blocks arrives with what was found."""
    record = rig.record(1, block_digests=D0 + D1, num_resends=num_resends)
    return rig.event(HandoffVerified(PREFILL, record, bad))


def receiving() -> DecodeRig:
    rig = DecodeRig()
    rig.admit(1)
    return rig


def counters(rig: DecodeRig) -> tuple[int, int]:
    found = rig.core.load().counters
    return found["blocks_verified"], found["blocks_damaged"]


def test_blocks_that_landed_are_decoded_from() -> None:
    rig = receiving()
    out = verified(rig, ())
    assert sent(out, HandoffAccepted, PREFILL) == [HandoffAccepted(R, 1)]
    assert out.count(InboundClosed(R)) == 1
    assert rig.pages == {"free": 14, "in_use": 2}
    assert counters(rig) == (2, 0)


def test_damaged_blocks_are_asked_for_and_the_second_record_is_accepted() -> None:
    rig = receiving()
    out = verified(rig, (1,))
    assert sent(out, BlocksDamaged, PREFILL) == [BlocksDamaged(R, 1, (1,))]
    assert sent(out, HandoffAccepted) == []
    assert rig.pages == {"free": 14, "writing": 2}
    out = verified(rig, (), num_resends=1)
    assert sent(out, HandoffAccepted, PREFILL) == [HandoffAccepted(R, 1)]
    assert counters(rig) == (4, 1)


@pytest.mark.parametrize("bad", [(), (0, 1)])
def test_a_repeat_of_the_first_record_says_that_the_request_was_lost(bad: tuple[int, ...]) -> None:
    rig = receiving()
    verified(rig, (1,))
    assert sent(verified(rig, bad), BlocksDamaged, PREFILL) == [BlocksDamaged(R, 1, (1,))]
    assert counters(rig) == (2, 1)


def test_blocks_damaged_twice_fail_the_room_and_nothing_of_it_is_trusted() -> None:
    rig = receiving()
    verified(rig, (0, 1))
    out = verified(rig, (1,), num_resends=1)
    (failure,) = sent(out, LegFailed, BALANCER)
    assert failure.reason is _F.HANDOFF_REJECTED
    assert sent(out, AbortRoom, PREFILL) == [AbortRoom(R, _F.PEER_ABORTED)]
    assert rig.pages == {"free": 14, "quarantined": 2}
    rig.receive(WriterStopped(R, 1))
    assert rig.pages == {"free": 14, "quarantined": 2}, "its transport said so before, falsely"
    assert InboundClosed(R) in rig.tick(SETTLE_S)
    assert rig.pages == {"free": 16}


@pytest.mark.parametrize("digests", [D0, D0 + D1, D0 + D1 + D2])
def test_digests_that_nobody_compared_make_nothing_valid(digests: bytes) -> None:
    rig = receiving()
    out = rig.receive(rig.record(1, block_digests=digests))
    (failure,) = sent(out, LegFailed, BALANCER)
    assert failure.reason is _F.HANDOFF_REJECTED


def test_what_is_found_in_pages_that_decode_already_means_nothing() -> None:
    rig = receiving()
    record = rig.record(1, block_digests=D0 + D1)
    rig.event(HandoffVerified(PREFILL, record, ()))
    rig.step()
    out = rig.event(HandoffVerified(PREFILL, record, (1,)))
    assert sent(out, HandoffAccepted, PREFILL) == [HandoffAccepted(R, 1)]
    assert rig.pages == {"free": 14, "in_use": 2}


def test_a_found_damage_of_another_sender_or_epoch_is_nothing() -> None:
    rig = receiving()
    record = rig.record(1, block_digests=D0 + D1)
    for sender in (STRANGER, peer("p", life=1)):
        assert rig.event(HandoffVerified(sender, record, (0,))) == []
    stale = rig.record(1, block_digests=D0 + D1, epoch=7)
    assert rig.event(HandoffVerified(PREFILL, stale, (0,))) == []


def test_an_aborted_rooms_first_record_does_not_free_what_may_be_written_again() -> None:
    rig = receiving()
    first = rig.record(1, block_digests=D0 + D1)
    second = rig.record(1, block_digests=D0 + D1, num_resends=1)
    verified(rig, (1,))
    rig.receive(AbortRoom(R, _F.CANCELLED), BALANCER)
    rig.receive(first)
    assert rig.pages == {"free": 14, "quarantined": 2}
    rig.tick(SETTLE_S)
    assert rig.pages == {"free": 14, "quarantined": 2}, "the writer may be writing still"
    rig.receive(second)
    rig.tick(2 * SETTLE_S)
    assert rig.pages == {"free": 16}


@pytest.mark.parametrize("bad", [(), (1,)])
def test_a_room_aborted_while_it_was_verified_keeps_its_pages_until_it_is_safe(
    bad: tuple[int, ...],
) -> None:
    rig = receiving()
    record = rig.record(1, block_digests=D0 + D1)
    rig.receive(AbortRoom(R, _F.CANCELLED), BALANCER)
    assert rig.pages == {"free": 14, "quarantined": 2}
    out = rig.event(HandoffVerified(PREFILL, record, bad))  # it follows the last write
    assert sent(out, HandoffAccepted, PREFILL) == [HandoffAccepted(R, 1)]
    if bad:
        assert rig.pages == {"free": 14, "quarantined": 2}, "what is missing may still land"
        rig.tick(SETTLE_S)
    assert rig.pages == {"free": 16}


def test_a_writer_that_stops_before_its_second_record_is_not_believed_either() -> None:
    rig = receiving()
    verified(rig, (1,))
    (failure,) = sent(rig.receive(WriterStopped(R, 1)), LegFailed, BALANCER)
    assert failure.reason is _F.TRANSFER_FAILED
    rig.receive(AbortRoom(R, _F.PEER_ABORTED))  # it comes after, where the transfer gave up first
    assert rig.pages == {"free": 14, "quarantined": 2}
    rig.tick(SETTLE_S)
    assert rig.pages == {"free": 16}


def test_a_prefill_engine_that_dies_with_damaged_blocks_ends_the_room() -> None:
    rig = receiving()
    verified(rig, (1,))
    (failure,) = sent(rig.event(PeerLeft(PREFILL.ref, True)), LegFailed, BALANCER)
    assert failure.reason is _F.PEER_LOST


# --- between the wire and the core -----------------------------------------------------------


def test_the_verifier_compares_what_landed_and_passes_on_what_it_cannot_compare() -> None:
    events: list[object] = []
    verifier = HandoffVerifier(lambda blocks, on_digests: on_digests(D0 + D2), events.append)
    verifier.opened(Blocks(R, 4, 1, (20, 21)))
    record = HandoffRecord(R, 4, 7, 0, 10, b"d" * 16, block_digests=D0 + D1)
    verifier.check(PREFILL, record)
    assert events.pop() == HandoffVerified(PREFILL, record, (2,))
    others = [
        HandoffRecord(R, 4, 7, 0, 10, b"d" * 16),
        HandoffRecord(R, 4, 7, 0, 10, b"d" * 16, block_digests=D0),
        HandoffRecord(R, 5, 7, 0, 10, b"d" * 16, block_digests=D0 + D1),
        HandoffRecord(room(2), 4, 7, 0, 10, b"d" * 16, block_digests=D0 + D1),
    ]
    for other in others:
        verifier.check(PREFILL, other)
        assert events.pop() == Received(PREFILL, other)
    verifier.closed(R)
    verifier.check(PREFILL, record)
    assert events == [Received(PREFILL, record)]

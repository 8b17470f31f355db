"""The decode core: admission, records, steps, and what its peers are told."""

import pytest

from bootstrap.membership import WorkerState
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    HandoffAccepted,
    LegFailed,
    LegProgress,
    Manifest,
    PrefillStarted,
    Stage,
    TokenBatch,
    WriterStopped,
)
from bootstrap.sampling import FinishReason
from decode.instructions import DropSwap, InboundClosed, InboundOpened
from engine.core import PeerJoined, SwapOut
from engine.step import NumericalFault, SampledToken
from kv_transfer.digests import Blocks
from tests.support.cores import (
    BALANCER,
    PREFILL,
    PREFILL_INFO,
    STRANGER,
    decode_dispatch,
    of_type,
    peer,
    prompt,
    room,
    sampling,
    sent,
)
from tests.support.decode_rig import DecodeRig, rig_in

_F = FailureReason
R = room(1)


# --- admission -------------------------------------------------------------------------------


def test_pages_are_given_only_after_the_prefill_engine_started() -> None:
    rig = DecodeRig()
    assert rig.dispatch(1) == []
    assert rig.step() == []
    assert rig.receive(PrefillStarted(R)) == []
    out = rig.step()
    pages = rig.core.scheduler.ledger.pages_of(R)
    assert sent(out, Manifest, PREFILL) == [Manifest(R, 1, 0, pages)]
    assert of_type(out, InboundOpened) == [InboundOpened(Blocks(R, 1, 0, pages))]
    assert rig.pages == {"free": 14, "writing": 2}
    assert rig.step() == []


def test_a_start_before_the_dispatch_is_remembered() -> None:
    rig = DecodeRig()
    assert rig.receive(PrefillStarted(R)) == []
    rig.dispatch(1)
    assert len(sent(rig.step(), Manifest)) == 1


def test_a_start_from_anybody_else_means_nothing() -> None:
    rig = DecodeRig()
    rig.dispatch(1)
    rig.receive(PrefillStarted(R), STRANGER)
    rig.receive(PrefillStarted(R), peer("p", life=1))
    assert rig.step() == []


def test_no_page_is_promised_to_a_prefill_engine_that_is_not_known() -> None:
    """Nobody would ever tell us of its death, and its pages could never come back."""
    rig = DecodeRig(joined=False)
    rig.dispatch(1)
    rig.receive(PrefillStarted(R))
    assert rig.step() == []
    rig.event(PeerJoined(PREFILL_INFO))
    assert len(sent(rig.step(), Manifest)) == 1


def test_a_repeated_start_repeats_the_manifest() -> None:
    """Messages can be lost with a connection: the writer asks, and is told again."""
    rig = DecodeRig()
    manifest = rig.admit(1)
    assert sent(rig.receive(PrefillStarted(R)), Manifest, PREFILL) == [manifest]
    rig.receive(rig.record(1))
    assert rig.receive(PrefillStarted(R)) == []


def test_a_manifest_names_only_what_is_missing() -> None:
    rig = DecodeRig()
    rig.run(1, 9)
    rig.step()  # finite logits show that what was received may be named
    rig.receive(decode_dispatch(3, prompt(9, first=10)), BALANCER)
    rig.receive(PrefillStarted(room(3)))
    (manifest,) = sent(rig.step(), Manifest)
    assert (manifest.first_block, len(manifest.pages)) == (2, 1)
    assert sent(rig.receive(PrefillStarted(room(3))), Manifest) == [manifest]


# --- records ---------------------------------------------------------------------------------


def test_a_record_that_agrees_makes_the_room_run() -> None:
    rig = DecodeRig()
    out = rig.run(1)
    assert sent(out, HandoffAccepted, PREFILL) == [HandoffAccepted(R, 1)]
    assert of_type(out, InboundClosed) == [InboundClosed(R)]
    assert rig.pages == {"free": 14, "in_use": 2}
    (batch,) = sent(rig.step(), TokenBatch, BALANCER)
    assert (batch.rooms[0].position, batch.rooms[0].token_ids) == (1, (7,))


@pytest.mark.parametrize(
    ("overrides", "detail"),
    [
        ({"num_prompt_tokens": 5}, "prompt of 5 tokens, not 6"),
        ({"prompt_digest": b"x" * 16}, "another prompt"),
        ({"position": 3}, "position 3, not 0"),
        ({"token_id": 100}, "beyond vocabulary"),
    ],
)
def test_a_record_that_contradicts_the_dispatch_ends_the_room(overrides: dict, detail: str) -> None:
    rig = rig_in("receiving")
    out = rig.receive(rig.record(1, **overrides))
    (failure,) = sent(out, LegFailed, BALANCER)
    assert failure.reason is _F.HANDOFF_REJECTED
    assert detail in failure.detail
    assert sent(out, AbortRoom, PREFILL) == [AbortRoom(R, _F.PEER_ABORTED)]
    assert rig.core.scheduler.running == {}
    assert rig.step() == []


def test_another_epochs_or_another_workers_record_means_nothing() -> None:
    rig = rig_in("receiving")
    record = rig.record(1)
    assert rig.receive(rig.record(1, epoch=2)) == []
    assert rig.receive(record, STRANGER) == []
    assert rig.receive(record, peer("p", life=1)) == []
    assert len(sent(rig.receive(record), HandoffAccepted)) == 1


def test_a_repeated_record_is_acknowledged_again_and_moves_nothing() -> None:
    rig = rig_in("receiving")
    record = rig.record(1)
    rig.receive(record)
    rig.step()
    before = list(rig.core.scheduler.running[R].token_ids)
    assert rig.receive(record) == rig.receive(record)
    assert sent(rig.receive(record), HandoffAccepted) == [HandoffAccepted(R, record.epoch)]
    assert rig.core.scheduler.running[R].token_ids == before


def test_a_record_for_an_ended_room_is_acknowledged_and_frees_its_pages() -> None:
    """A record follows the last write: nothing more can come."""
    rig = rig_in("receiving")
    record = rig.record(1)
    rig.receive(AbortRoom(R, _F.CANCELLED), BALANCER)
    assert rig.pages == {"free": 14, "quarantined": 2}
    out = rig.receive(record)
    assert sent(out, HandoffAccepted) == [HandoffAccepted(R, record.epoch)]
    assert of_type(out, InboundClosed) == [InboundClosed(R)]
    assert rig.pages == {"free": 16}


# --- steps -----------------------------------------------------------------------------------


def test_one_message_per_balancer_and_step() -> None:
    rig = DecodeRig()
    other = peer("lb2")
    rig.run(1)
    rig.run(2)
    rig.run(3, reply_to=other)
    out = rig.step()
    (ours,) = sent(out, TokenBatch, BALANCER)
    assert [tokens.room for tokens in ours.rooms] == [room(1), room(2)]
    (theirs,) = sent(out, TokenBatch, other)
    assert [tokens.room for tokens in theirs.rooms] == [room(3)]


@pytest.mark.parametrize(
    ("params", "num_steps", "reason"),
    [
        (sampling(4), 3, FinishReason.LENGTH),
        (sampling(9, stop_token_ids=(7,)), 1, FinishReason.STOP),
        (sampling(9, stop_token_ids=(7,), min_tokens=4), 4, FinishReason.STOP),
    ],
)
def test_a_request_ends_with_its_last_token(params, num_steps: int, reason: FinishReason) -> None:
    rig = DecodeRig()
    rig.now = 1.0
    rig.run(1, sampling=params)
    positions = []
    for _ in range(num_steps):
        rig.now += 1.0
        (batch,) = sent(rig.step(), TokenBatch)
        positions.append(batch.rooms[0].position)
        last = batch.rooms[0]
    assert positions == list(range(1, num_steps + 1))
    assert last.finish is reason
    assert last.stats is not None
    assert last.stats.compute_s == num_steps
    assert rig.core.load().num_rooms == 0
    assert rig.pages == {"free": 15, "cached": 1} or rig.pages == {"free": 14, "cached": 2}
    assert rig.step() == []


def test_a_continued_attempt_goes_on_at_its_absolute_position() -> None:
    rig = DecodeRig()
    rig.run(1, 6, output_offset=2, sampling=sampling(5))
    positions = []
    while (out := sent(rig.step(), TokenBatch)) != []:
        positions.append(out[0].rooms[0].position)
    assert positions == [3, 4]


def test_nan_ends_one_room_and_its_neighbours_go_on() -> None:
    rig = DecodeRig()
    rig.run(1)
    rig.run(2)
    plan = rig.core.plan(0.0)
    assert plan is not None
    rig.core.complete(plan, [NumericalFault("NaN"), SampledToken(7, 0.0)], 0.0)
    rig.core.validate()
    out = rig.core.drain()
    assert sent(out, LegFailed) == [LegFailed(R, _F.NUMERICAL, "NaN")]
    (batch,) = sent(out, TokenBatch)
    assert [tokens.room for tokens in batch.rooms] == [room(2)]


def test_a_step_that_raised_ends_its_rooms_only() -> None:
    rig = DecodeRig()
    rig.run(1)
    rig.admit(2)
    plan = rig.core.plan(0.0)
    assert plan is not None
    rig.core.step_failed(plan, "boom", 0.0)
    rig.core.validate()
    assert sent(rig.core.drain(), LegFailed) == [LegFailed(R, _F.INTERNAL, "boom")]
    rig.receive(rig.record(2))
    assert len(sent(rig.step(), TokenBatch)) == 1


def test_a_step_that_raised_ends_those_whose_bytes_it_moved() -> None:
    """Nobody knows how far it came: a copy that may not exist must not be brought back."""
    rig = DecodeRig(num_blocks=6, prefix_caching=False)
    rig.run(1, 7, sampling=sampling(16))
    rig.now += 1.0
    rig.run(2, 7, sampling=sampling(16))
    plan = rig.core.plan(rig.now)
    while plan is not None and not plan.swaps:
        rig.core.complete(plan, [SampledToken(7, 0.0)] * 2, rig.now)
        plan = rig.core.plan(rig.now)
    assert plan is not None
    assert [type(swap) for swap in plan.swaps] == [SwapOut]
    rig.core.drain()
    rig.core.step_failed(plan, "boom", rig.now)
    rig.core.validate()
    out = rig.core.drain()
    assert {failure.room for failure in sent(out, LegFailed)} == {room(1), room(2)}
    assert DropSwap(room(2)) in out
    assert rig.core.load().num_rooms == 0
    assert rig.pages == {"free": 6}


# --- progress --------------------------------------------------------------------------------


def test_every_second_the_balancer_hears_where_its_rooms_are() -> None:
    rig = rig_in("retracted")
    rig.dispatch(3)
    rig.dispatch(4)
    rig.receive(PrefillStarted(room(4)))
    (progress,) = sent(rig.tick(2.0), LegProgress, BALANCER)
    assert progress.stages == {
        room(1): Stage.QUEUED,
        room(2): Stage.RUNNING,
        room(3): Stage.WAITING,
        room(4): Stage.QUEUED,
    }
    assert sent(rig.tick(2.9), LegProgress) == []
    assert len(sent(rig.tick(3.0), LegProgress)) == 1


def test_a_receiving_room_is_transferring() -> None:
    rig = rig_in("receiving")
    (progress,) = sent(rig.tick(0.0), LegProgress)
    assert progress.stages == {R: Stage.TRANSFERRING}


def test_the_load_counts_rooms_by_where_they_are() -> None:
    rig = rig_in("retracted")
    load = rig.core.load()
    assert (load.num_rooms, load.num_running, load.num_queued) == (2, 1, 1)
    assert load.counters["retractions"] == 1
    assert load.state is WorkerState.READY
    rig.core.shut_down(0.0)
    assert rig.core.load().state is WorkerState.DRAINING


def test_a_writer_that_stopped_needs_no_quarantine() -> None:
    rig = rig_in("receiving")
    rig.receive(WriterStopped(R, 1))
    out = rig.receive(AbortRoom(R, _F.DEADLINE))
    assert of_type(out, InboundClosed) == [InboundClosed(R)]
    assert rig.pages == {"free": 16}

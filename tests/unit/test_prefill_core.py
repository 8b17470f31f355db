"""The prefill core: what computes when, and what each outcome sets off."""

import pytest

from bootstrap.errors import IllegalTransition
from bootstrap.membership import WorkerState
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    LegFailed,
    LegProgress,
    PrefillStarted,
    Stage,
    TokenBatch,
    WriterStopped,
)
from bootstrap.sampling import FinishReason
from engine.core import Received
from engine.patience import MAX_PASSED, MAX_PASSED_S
from kv_transfer.prefix import prompt_digest
from prefill.core import PrefillCore
from prefill.handoffs import (
    BlocksComputed,
    EndTransfer,
    OpenTransfer,
    PassTime,
    PromptComputed,
    TransferClosed,
    TransferFailed,
)
from prefill.request import TRANSITIONS, PrefillEvent, PrefillRequest, PrefillState
from tests.support.cores import (
    BALANCER,
    DECODE,
    STRANGER,
    of_type,
    peer,
    prompt,
    room,
    sampling,
    sent,
    step,
)
from tests.support.prefill_rig import abort, core_with, dispatch, idle, sizes

_S, _E, _F = PrefillState, PrefillEvent, FailureReason


# --- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(_S))
@pytest.mark.parametrize("event", list(_E))
@pytest.mark.parametrize("target", list(_S))
def test_the_request_makes_exactly_the_moves_of_its_table(
    state: PrefillState, event: PrefillEvent, target: PrefillState
) -> None:
    request = PrefillRequest(dispatch(1), arrived_at=0.0, hashes=[], state=state)
    if target in TRANSITIONS.get((state, event), ()):
        request.advance(event, target)
        assert request.state is target
    else:
        with pytest.raises(IllegalTransition, match="request r1 room"):
            request.advance(event, target)
        assert request.state is state


# --- order, budget, pages --------------------------------------------------------------------


def test_equal_prompts_are_served_in_order_in_chunks_under_the_budget() -> None:
    core = core_with(dispatch(1, 12), dispatch(2, 12), dispatch(3, 12))
    assert sizes(step(core)) == [(1, 0, 8)]
    assert sizes(step(core)) == [(1, 8, 4), (2, 0, 4)]
    assert sizes(step(core)) == [(2, 4, 8)]
    assert sizes(step(core)) == [(3, 0, 8)]
    assert sizes(step(core)) == [(3, 8, 4)]
    assert core.plan(0.0) is None


def test_only_the_last_chunk_samples_and_at_the_absolute_position() -> None:
    core = core_with(dispatch(1, 12, output_offset=3, sampling=sampling(9)))
    first = step(core)
    assert first is not None
    assert first.chunks[0].sample is None
    last = step(core)
    assert last is not None
    assert last.chunks[0].sample is not None
    assert last.chunks[0].sample.position == 3
    (batch,) = sent(core.drain(), TokenBatch, BALANCER)
    assert batch.rooms[0].position == 3


def test_pages_are_taken_for_the_whole_prompt_before_the_peer_hears_of_it() -> None:
    core = core_with(dispatch(1, 12))
    plan = step(core)
    out = core.drain()
    opened = of_type(out, OpenTransfer)
    assert opened == [OpenTransfer(room(1), DECODE, core.ledger.pages_of(room(1)))]
    assert len(opened[0].pages) == 3
    assert sent(out, PrefillStarted, DECODE) == [PrefillStarted(room(1))]
    assert out.index(opened[0]) < next(i for i, o in enumerate(out) if o not in opened)
    assert plan is not None
    assert tuple(plan.chunks[0].pages) == opened[0].pages


def test_full_blocks_are_announced_as_they_end() -> None:
    core = core_with(dispatch(1, 15), max_num_batched_tokens=6)
    announced = []
    while step(core) is not None:
        announced += [each.num_blocks for each in of_type(core.drain(), BlocksComputed)]
    assert announced == [1, 3]  # 6 and 12 tokens; the last chunk ends the prompt


def test_a_short_prompt_gets_its_chunk_in_the_next_step_beside_a_long_one() -> None:
    core = core_with(dispatch(1, 40))
    assert sizes(step(core)) == [(1, 0, 8)]
    core.handle(Received(BALANCER, dispatch(2, 3)), 0.0)
    core.handle(Received(BALANCER, dispatch(3, 2)), 0.0)
    assert sizes(step(core)) == [(3, 0, 2), (2, 0, 2), (1, 8, 4)]
    assert sizes(step(core)) == [(2, 2, 1), (1, 12, 7)]
    assert sizes(step(core)) == [(1, 19, 8)]


def test_the_oldest_gets_half_of_every_step_however_many_short_ones_come() -> None:
    core = core_with(dispatch(1, 32), num_blocks=64, max_num_seqs=64, max_queue=64)
    step(core)
    for number in range(2, 60):
        core.handle(Received(BALANCER, dispatch(number, 2)), 0.0)
    for num_computed in range(8, 24, 4):
        assert (1, num_computed, 4) in sizes(step(core))


def test_short_prompts_go_on_beside_a_long_one_while_another_long_one_waits_for_it() -> None:
    core = core_with(dispatch(1, 200), dispatch(2, 200), num_blocks=128, max_model_len=256)
    step(core)
    for number in range(3, 3 + MAX_PASSED + 4):
        core.handle(Received(BALANCER, dispatch(number, 2)), MAX_PASSED_S * number)
        planned = sizes(step(core, MAX_PASSED_S * number))
        assert [each[0] for each in planned] == [number, 1], "room 2 lacks no page, but its turn"


def test_a_long_prompt_starts_beside_no_equal_one_to_delay_both() -> None:
    core = core_with(dispatch(1, 24), dispatch(2, 24))
    assert sizes(step(core)) == [(1, 0, 8)]
    assert core.load().num_queued == 1  # and it holds no pages


def waiting_for_pages(**more) -> PrefillCore:
    """10 of 16 pages are leased; room 2 is next and wants 8."""
    core = core_with(dispatch(1, 40), dispatch(2, 30), **more)
    for _ in range(5):
        step(core)
    assert core.load().num_queued == 1
    assert core.plan(0.0) is None
    return core


def test_what_fits_may_pass_a_prompt_that_waits_for_pages() -> None:
    core = waiting_for_pages()
    core.handle(Received(BALANCER, dispatch(3, 4)), 0.0)
    assert sizes(step(core)) == [(3, 0, 4)]
    core.handle(TransferClosed(room(1)), 0.0)
    assert sizes(step(core)) == [(2, 0, 8)]


def test_only_so_often_is_a_prompt_passed_and_then_pages_are_kept_for_it() -> None:
    core = waiting_for_pages()
    for number in range(3, 3 + MAX_PASSED):
        core.handle(Received(BALANCER, dispatch(number, 4)), 0.0)
        assert sizes(step(core)) == [(number, 0, 4)]
        core.handle(TransferClosed(room(number)), 0.0)
    core.handle(Received(BALANCER, dispatch(99, 4)), 0.0)
    assert core.plan(0.0) is None
    core.handle(TransferClosed(room(1)), 0.0)
    assert {number for number, _, _ in sizes(step(core))} == {2, 99}


def test_only_so_long_is_a_prompt_passed() -> None:
    core = waiting_for_pages()
    core.handle(Received(BALANCER, dispatch(3, 4)), 0.0)
    assert sizes(step(core, 0.0)) == [(3, 0, 4)]
    core.handle(Received(BALANCER, dispatch(4, 4)), MAX_PASSED_S)
    assert core.plan(MAX_PASSED_S) is None


def test_no_more_prompts_compute_at_once_than_sequences_are_allowed() -> None:
    core = core_with(dispatch(1, 3), dispatch(2, 3), max_num_seqs=1)
    assert sizes(step(core)) == [(1, 0, 3)]
    assert sizes(step(core)) == [(2, 0, 3)]


# --- the bootstrap token ---------------------------------------------------------------------


def test_a_finished_prompt_delivers_its_token_and_is_handed_off() -> None:
    core = core_with(dispatch(1, 6))
    core.handle(Received(BALANCER, dispatch(2, 4)), 1.0)
    step(core, now=3.0)
    out = core.drain()
    (batch, *_) = sent(out, TokenBatch, BALANCER)
    tokens = batch.rooms[0]
    assert (tokens.room, tokens.position, tokens.token_ids) == (room(1), 0, (7,))
    assert tokens.finish is None
    assert tokens.stats is not None
    assert (tokens.stats.queue_s, tokens.stats.num_cached_tokens) == (3.0, 0)
    record = of_type(out, PromptComputed)[0].record
    assert (record.room, record.token_id, record.position) == (room(1), 7, 0)
    assert record.num_prompt_tokens == 6
    assert record.prompt_digest == prompt_digest(prompt(6, first=10))
    assert core.ledger.counts()["leased"] == 2
    core.handle(TransferClosed(room(1)), 4.0)
    core.validate()
    assert core.ledger.pages_of(room(1)) == ()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"sampling": sampling(stop_token_ids=(7,))}, FinishReason.STOP),
        ({"sampling": sampling(1)}, FinishReason.LENGTH),
        ({"bootstrap_stop_ids": (3, 7)}, FinishReason.STOP),
        ({"sampling": sampling(5), "output_offset": 4}, FinishReason.LENGTH),
    ],
)
def test_a_bootstrap_token_that_finishes_hands_nothing_off(
    overrides: dict, reason: FinishReason
) -> None:
    core = core_with(dispatch(1, 6, **overrides))
    step(core)
    out = core.drain()
    (batch,) = sent(out, TokenBatch)
    assert batch.rooms[0].finish is reason
    assert sent(out, AbortRoom, DECODE) == [AbortRoom(room(1), _F.FINISHED)]
    assert of_type(out, PromptComputed) == []
    assert of_type(out, EndTransfer) == [EndTransfer(room(1))]
    assert sent(out, LegFailed) == []
    core.handle(TransferClosed(room(1)), 0.0)
    assert idle(core)


def test_a_stop_id_before_min_tokens_is_handed_off() -> None:
    core = core_with(dispatch(1, 6, sampling=sampling(stop_token_ids=(7,), min_tokens=2)))
    step(core)
    assert len(of_type(core.drain(), PromptComputed)) == 1


def test_a_room_without_a_decode_engine_ends_with_its_token() -> None:
    core = core_with(dispatch(1, 6, decode=None, sampling=sampling(1)))
    step(core)
    out = core.drain()
    (batch,) = sent(out, TokenBatch)
    assert batch.rooms[0].finish is FinishReason.LENGTH
    assert not of_type(out, OpenTransfer) + of_type(out, EndTransfer)
    assert not sent(out, AbortRoom) + sent(out, PrefillStarted)
    assert idle(core)


# --- progress --------------------------------------------------------------------------------


def test_every_second_each_balancer_hears_where_its_rooms_are() -> None:
    other = peer("lb2")
    core = core_with(dispatch(1, 4), dispatch(2, 12), dispatch(3, 4, reply_to=other))
    step(core)
    core.drain()
    core.tick(0.0)
    out = core.drain()
    assert of_type(out, PassTime) == [PassTime(0.0)]
    stages = {room(1): Stage.TRANSFERRING, room(2): Stage.RUNNING}
    assert sent(out, LegProgress, BALANCER) == [LegProgress(stages)]
    assert sent(out, LegProgress, other) == [LegProgress({room(3): Stage.QUEUED})]
    core.tick(0.9)
    assert sent(core.drain(), LegProgress) == []
    core.tick(1.0)
    assert len(sent(core.drain(), LegProgress)) == 2


def test_the_load_counts_rooms_by_where_they_are() -> None:
    core = core_with(dispatch(1, 4), dispatch(2, 12), dispatch(3, 4))
    step(core)
    load = core.load()
    assert (load.num_queued, load.num_running, load.num_rooms) == (1, 1, 3)
    assert load.pages["leased"] == 1
    assert load.state is WorkerState.READY
    core.shut_down(0.0)
    assert core.load().state is WorkerState.DRAINING


def test_a_room_that_is_not_here_is_written_no_more() -> None:
    """How its last write ended is forgotten: whoever asks has to allow for the worse."""
    core = core_with()
    core.handle(abort(9), 0.0)
    assert sent(core.drain(), WriterStopped, DECODE) == [WriterStopped(room(9), 0, cut=True)]


def test_a_failed_transfer_ends_both_legs() -> None:
    core = core_with(dispatch(1, 6))
    step(core)
    core.drain()
    core.handle(TransferFailed(room(1), _F.TRANSFER_FAILED, "link down"), 0.0)
    out = core.drain()
    assert sent(out, LegFailed, BALANCER) == [LegFailed(room(1), _F.TRANSFER_FAILED, "link down")]
    assert sent(out, AbortRoom, DECODE) == [AbortRoom(room(1), _F.PEER_ABORTED)]
    core.handle(TransferClosed(room(1)), 0.0)
    assert idle(core)
    core.handle(TransferFailed(room(1), _F.PEER_LOST, "late"), 0.0)
    core.handle(TransferClosed(room(1)), 0.0)
    assert core.drain() == []


def test_a_stranger_moves_nothing() -> None:
    core = core_with(dispatch(1, 6))
    step(core)
    core.drain()
    core.handle(abort(1, sender=STRANGER), 0.0)
    core.handle(abort(1, sender=peer("d", life=1)), 0.0)  # an older or younger decode engine
    assert core.drain() == []
    assert core.load().num_rooms == 1

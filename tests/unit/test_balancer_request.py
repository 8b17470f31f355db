"""The request machine: legs are linked, tokens come once and in order, one outcome."""

import pytest

from bootstrap.errors import IllegalTransition
from bootstrap.identity import Role
from bootstrap.messages import FailureReason as R
from bootstrap.messages import RoomTokens, TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.instructions import Deliver, Dispatch, EndAttempt, Fail, FailureKind, Retry
from cluster.balancer.policy import Pair
from cluster.balancer.request import Request, RequestSpec, RequestState, RetryRules
from tests.support.members import worker_info

PAIR = Pair(worker_info("p1", Role.PREFILL), worker_info("d1", Role.DECODE))
OTHER = Pair(worker_info("p2", Role.PREFILL), worker_info("d2", Role.DECODE))
P, D = PAIR.refs
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def request(max_tokens=10, **rules) -> Request:
    sampling = SamplingParams(seed=0, max_tokens=max_tokens)
    spec = RequestSpec("req", (1, 2, 3), sampling)
    return Request(spec, RetryRules(**rules), deadline_at=100.0, waiting_since=0.0)


def dispatched(max_tokens=10, **rules) -> Request:
    made = request(max_tokens, **rules)
    (start,) = made.dispatch(PAIR, bytes(16), 0.0)
    assert isinstance(start, Dispatch)
    return made


def decoding(**rules) -> Request:
    made = dispatched(**rules)
    tokens(made, P, 0, (10,), None, 1.0)
    tokens(made, D, 1, (11,), None, 1.0)
    assert made.state is RequestState.DECODING
    return made


def tokens(made, ref, position, token_ids, finish, now, **more):
    return made.tokens(ref, RoomTokens(bytes(16), position, token_ids, finish, **more), now)


def told(instructions) -> dict[str, R]:
    """Who is told to end, and why."""
    ends = [i for i in instructions if isinstance(i, EndAttempt)]
    return {peer.ref.worker_id: end.reason for end in ends for peer in end.aborts}


def test_both_legs_to_the_end():
    made = dispatched()
    assert tokens(made, P, 0, (10,), None, 1.0) == [Deliver((10,), None)]
    assert made.state is RequestState.HANDING_OFF
    assert tokens(made, D, 1, (11, 12), None, 1.0) == [Deliver((11, 12), None)]
    assert made.state is RequestState.DECODING
    deliver, end = tokens(made, D, 3, (13,), STOP, 1.0)
    assert deliver == Deliver((13,), STOP)
    assert told([end]) == {}
    assert made.state is RequestState.FINISHED
    assert made.delivered == [10, 11, 12, 13]


def test_the_bootstrap_token_may_be_the_last_and_decode_is_released():
    made = dispatched()
    deliver, end = tokens(made, P, 0, (10,), STOP, 1.0)
    assert deliver == Deliver((10,), STOP)
    assert told([end]) == {"d1": R.FINISHED}


@pytest.mark.parametrize("ref", [P, D])
def test_engines_that_did_not_hear_us_are_not_to_blame(ref):
    made = decoding(max_attempts=2) if ref == D else dispatched(max_attempts=2)
    _, retry = made.leg_failed(ref, R.BALANCER_LOST, "", 2.0)
    assert isinstance(retry, Retry)
    assert retry.reason is R.BALANCER_LOST
    assert made.blamed == {}
    made.dispatch(PAIR, bytes(16), 2.0)
    assert isinstance(made.leg_failed(ref, R.BALANCER_LOST, "", 3.0)[-1], Fail), "not for ever"


def test_one_more_token_needs_no_decode_leg():
    made = dispatched(max_tokens=1)
    assert made.attempt.decode is None
    assert tokens(made, P, 0, (10,), LENGTH, 1.0)[0] == Deliver((10,), LENGTH)


def test_decode_may_be_heard_before_prefill():
    made = dispatched()
    assert tokens(made, D, 1, (11,), None, 1.0) == []
    assert tokens(made, P, 0, (10,), None, 1.0) == [Deliver((10, 11), None)]
    assert made.state is RequestState.DECODING


def test_repeats_are_dropped():
    made = decoding()
    assert tokens(made, D, 1, (11,), None, 1.0) == []
    assert tokens(made, D, 1, (11, 12), None, 1.0) == [Deliver((12,), None)]


def test_an_engine_that_runs_past_the_limit_is_cut_short():
    made = dispatched(max_tokens=2)
    tokens(made, P, 0, (10,), None, 1.0)
    deliver, end = tokens(made, D, 1, (11, 12, 13), None, 1.0)
    assert deliver == Deliver((11,), LENGTH)
    assert told([end]) == {"d1": R.FINISHED}


def test_a_lost_worker_mid_stream_goes_on_elsewhere_at_the_next_position():
    made = decoding()
    end, retry = made.worker_lost(D, "evicted", 2.0)
    assert told([end]) == {"p1": R.PEER_LOST}
    assert isinstance(retry, Retry)
    assert made.blamed == {D: R.PEER_LOST}
    assert (made.size.num_prompt, made.size.num_output) == (5, 8)
    (start,) = made.dispatch(OTHER, bytes([1] * 16), 2.0)
    assert start.attempt.output_offset == 2
    assert tokens(made, OTHER.refs[0], 2, (12,), None, 2.0) == [Deliver((12,), None)]


def test_prefill_may_die_once_decode_has_spoken():
    made = decoding()
    assert made.worker_lost(P, "evicted", 2.0) == []
    assert made.leg_failed(P, R.TRANSFER_FAILED, "", 2.0) == []
    assert made.state is RequestState.DECODING


def test_prefill_that_fails_before_its_token_matters_whatever_decode_said():
    made = dispatched()
    tokens(made, D, 1, (11,), None, 1.0)
    assert isinstance(made.leg_failed(P, R.DRAINING, "", 1.0)[-1], Retry)
    assert made.blamed == {P: R.DRAINING}


def test_prefill_lost_after_its_token_and_before_decode_spoke():
    made = dispatched()
    tokens(made, P, 0, (10,), None, 1.0)
    end, _retry = made.worker_lost(P, "evicted", 2.0)
    assert told([end]) == {"d1": R.PEER_LOST}
    assert made.size.num_prompt == 4


@pytest.mark.parametrize("reason", [R.DRAINING, R.TRANSFER_FAILED, R.INTERNAL])
def test_a_failed_leg_cancels_the_other_and_is_retried(reason):
    made = dispatched()
    end, retry = made.leg_failed(D, reason, "why", 1.0)
    assert told([end]) == {"p1": R.PEER_ABORTED}
    assert retry.reason is reason
    assert made.blamed == {D: reason}


def test_a_leg_that_lost_its_peer_blames_the_peer():
    made = dispatched()
    made.leg_failed(D, R.PEER_LOST, "", 1.0)
    assert made.blamed == {P: R.PEER_LOST}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(R.BAD_REQUEST, FailureKind.INTERNAL), (R.NUMERICAL, FailureKind.NUMERICAL)],
)
def test_what_would_fail_again_is_not_retried(reason, kind):
    made = dispatched()
    end, fail = made.leg_failed(P, reason, "x", 1.0)
    assert told([end]) == {"d1": R.PEER_ABORTED}
    assert fail.failure.kind is kind


def test_a_leg_aborted_by_its_peer_leaves_time_for_the_cause():
    made = dispatched()
    assert made.leg_failed(D, R.PEER_ABORTED, "", 1.0) == []
    assert made.tick(1.1) == []
    assert isinstance(made.leg_failed(P, R.NUMERICAL, "NaN", 1.2)[-1], Fail)


def test_a_leg_aborted_by_its_peer_without_a_cause_is_retried():
    made = dispatched()
    made.leg_failed(D, R.PEER_ABORTED, "", 1.0)
    tokens(made, P, 0, (10,), None, 1.1)
    assert isinstance(made.tick(1.4)[-1], Retry)


def test_decode_released_before_the_last_bootstrap_token_is_no_fault():
    made = dispatched()
    assert made.leg_failed(D, R.FINISHED, "", 1.0) == []
    deliver, end = tokens(made, P, 0, (10,), STOP, 1.1)
    assert deliver == Deliver((10,), STOP)
    assert told([end]) == {}


def test_a_missing_token_is_waited_for_and_then_retried():
    made = dispatched()
    tokens(made, D, 1, (11,), None, 1.0)
    assert made.tick(1.5) == []
    end, retry = made.tick(2.1)
    assert told([end]) == {"p1": R.PEER_ABORTED, "d1": R.PEER_ABORTED}
    assert "token 0" in retry.detail


def test_attempts_are_bounded():
    made = request(max_attempts=2)
    made.dispatch(PAIR, bytes(16), 0.0)
    made.worker_lost(D, "gone", 1.0)
    made.dispatch(OTHER, bytes([1] * 16), 1.0)
    end, fail = made.worker_lost(OTHER.refs[0], "gone", 1.0)
    assert told([end]) == {"d2": R.PEER_ABORTED}
    assert fail.failure.kind is FailureKind.WORKERS_FAILED


def test_waiting_for_a_pair_is_bounded_over_all_attempts():
    made = request(pair_wait_s=2.0)
    assert made.tick(1.4) == []
    made.dispatch(PAIR, bytes(16), 1.5)
    made.worker_lost(D, "gone", 10.0)
    assert made.tick(10.4) == []
    (fail,) = made.tick(10.5)
    assert fail.failure.kind is FailureKind.UNAVAILABLE
    assert "gone" in fail.failure.inside


def test_a_full_queue_is_nobodys_fault_and_costs_no_attempt():
    made = request(max_attempts=1)
    for number in range(5):
        made.dispatch(PAIR, bytes([number] * 16), 1.0)
        end, retry = made.leg_failed(P, R.QUEUE_FULL, "", 1.0)
        assert told([end]) == {"d1": R.PEER_ABORTED}
        assert retry.reason is R.QUEUE_FULL
    assert made.blamed == {}
    made.dispatch(PAIR, bytes([9] * 16), 1.0)
    assert made.worker_lost(D, "gone", 1.0)[-1].failure.kind is FailureKind.WORKERS_FAILED


def test_engines_that_leave_cost_no_attempt_and_are_not_asked_again():
    made = request(max_attempts=1)
    made.dispatch(PAIR, bytes(16), 1.0)
    end, retry = made.leg_failed(P, R.DRAINING, "", 1.0)
    assert told([end]) == {"d1": R.PEER_ABORTED}
    assert retry.reason is R.DRAINING
    made.dispatch(OTHER, bytes([1] * 16), 1.0)
    assert isinstance(made.worker_lost(OTHER.refs[1], "goodbye", 1.0, in_order=True)[-1], Retry)
    assert made.blamed == {P: R.DRAINING, OTHER.refs[1]: R.DRAINING}
    made.dispatch(PAIR, bytes([9] * 16), 1.0)
    assert made.worker_lost(D, "gone", 1.0)[-1].failure.kind is FailureKind.WORKERS_FAILED


def test_prefill_may_leave_in_order_once_its_token_is_out():
    made = dispatched()
    tokens(made, P, 0, (10,), None, 1.0)
    assert made.worker_lost(P, "goodbye", 1.1, in_order=True) == []
    assert tokens(made, D, 1, (11,), None, 1.2) == [Deliver((11,), None)]


def test_waiting_for_a_turn_is_bounded_by_the_deadline_alone():
    made = request(pair_wait_s=2.0)
    made.wait(for_turn=True, now=1.0)
    assert made.tick(50.0) == []
    made.wait(for_turn=False, now=50.0)
    assert made.tick(50.9) == []
    (fail,) = made.tick(51.0)
    assert fail.failure.kind is FailureKind.UNAVAILABLE


@pytest.mark.parametrize("make", [dispatched, decoding])
def test_cancel_tells_both_legs(make):
    end, fail = make().cancel()
    assert told([end]) == {"p1": R.CANCELLED, "d1": R.CANCELLED}
    assert fail.failure.kind is FailureKind.CANCELLED


def test_cancel_before_dispatch_tells_nobody():
    (fail,) = request().cancel()
    assert fail.failure.kind is FailureKind.CANCELLED


def test_the_deadline_ends_everything():
    end, fail = decoding().tick(100.0)
    assert told([end]) == {"p1": R.DEADLINE, "d1": R.DEADLINE}
    assert fail.failure.kind is FailureKind.DEADLINE


def test_a_stop_string_ends_the_decode_leg():
    made = decoding()
    assert told(made.stop_hit()) == {"d1": R.FINISHED}
    assert made.state is RequestState.FINISHED
    assert made.stop_hit() == []


def test_a_stop_string_while_a_retry_waits():
    made = decoding()
    made.worker_lost(D, "gone", 2.0)
    assert made.stop_hit() == []
    assert made.state is RequestState.FINISHED


def test_a_worker_that_no_longer_names_the_room_has_lost_it():
    made = dispatched()
    assert made.progress(P, named=True, now=1.0) == []
    assert made.progress(D, named=False, now=1.5) == []
    assert made.progress(D, named=True, now=1.6) == []
    assert made.progress(D, named=False, now=2.5) == []
    end, retry = made.progress(D, named=False, now=3.5)
    assert told([end]) == {"p1": R.PEER_ABORTED}
    assert isinstance(retry, Retry)


def test_prefill_may_forget_the_room_after_its_token():
    made = decoding()
    for now in (2.0, 3.0, 4.0):
        assert made.progress(P, named=False, now=now) == []


def test_silence_of_a_needed_leg_is_a_fault_and_progress_is_not_silence():
    made = dispatched(silence_s=5.0)
    made.progress(P, named=True, now=4.0)
    made.progress(D, named=True, now=4.0)
    assert made.tick(8.0) == []
    made.progress(P, named=True, now=8.0)
    _end, retry = made.tick(9.0)
    assert "d1" in retry.detail
    assert made.blamed == {D: R.PEER_LOST}


def test_an_illegal_move_tells_the_story():
    made = dispatched()
    with pytest.raises(IllegalTransition, match=r"request req: waiting -dispatch-> prefilling"):
        made.dispatch(PAIR, bytes(16), 1.0)


def scored(*values):
    return tuple(TokenLogprobs(-float(value)) for value in values)


def scoring(num_prompt_logprobs=None, max_tokens=10) -> Request:
    """Dispatched, with log probabilities wanted."""
    sampling = SamplingParams(seed=0, max_tokens=max_tokens, num_logprobs=0)
    spec = RequestSpec("req", (1, 2, 3), sampling, (), num_prompt_logprobs)
    made = Request(spec, RetryRules(), deadline_at=100.0, waiting_since=0.0)
    made.dispatch(PAIR, bytes(16), 0.0)
    return made


def test_log_probabilities_stay_with_their_tokens_in_any_order():
    made = scoring(num_prompt_logprobs=0)
    assert tokens(made, D, 1, (11, 12), None, 1.0, logprobs=scored(1, 2)) == []
    first = {"logprobs": scored(0), "prompt_logprobs": scored(8, 9)}
    (deliver,) = tokens(made, P, 0, (10,), None, 1.0, **first)
    assert deliver == Deliver((10, 11, 12), None, scored(0, 1, 2), scored(8, 9))
    (deliver,) = tokens(made, D, 2, (12, 13), None, 1.0, logprobs=scored(2, 3))
    assert deliver == Deliver((13,), None, scored(3))


def test_tokens_beyond_the_limit_take_their_log_probabilities_with_them():
    made = scoring(max_tokens=2)
    tokens(made, P, 0, (10,), None, 1.0, logprobs=scored(0))
    deliver, _ = tokens(made, D, 1, (11, 12), None, 1.0, logprobs=scored(1, 2))
    assert deliver == Deliver((11,), LENGTH, scored(1))


@pytest.mark.parametrize(
    "given", [{}, {"logprobs": scored(0)}, {"logprobs": scored(0), "prompt_logprobs": scored(8)}]
)
def test_a_worker_that_leaves_log_probabilities_out_ends_the_request(given):
    made = scoring(num_prompt_logprobs=0)
    end, fail = tokens(made, P, 0, (10,), None, 1.0, **given)
    assert told([end]) == {"p1": R.PEER_ABORTED, "d1": R.PEER_ABORTED}
    assert fail.failure.kind is FailureKind.INTERNAL

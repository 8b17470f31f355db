"""What is measured, what is foretold from it, and who is told to come again."""

import pytest

from bootstrap.sampling import SamplingParams
from cluster.balancer.admission import Admission
from cluster.balancer.drain_rate import MEMORY_S, DrainRate, ExpectedOutput
from cluster.balancer.instructions import FailureKind
from cluster.balancer.queue import QueueBounds
from cluster.balancer.request import RequestSpec


def spec(num_prompt: int = 10, max_tokens: int = 10, tenant: str = "") -> RequestSpec:
    sampling = SamplingParams(seed=0, max_tokens=max_tokens)
    return RequestSpec("r", tuple(range(num_prompt)), sampling, tenant=tenant)


def drained(rate: float, seconds: float, step_s: float = 0.25) -> DrainRate:
    measured = DrainRate()
    measured.observe(0, 0.0, waiting=True)
    for index in range(1, round(seconds / step_s) + 1):
        measured.observe(round(rate * step_s), index * step_s, waiting=True)
    return measured


@pytest.mark.parametrize("seconds", [1, 5, 30, 300])
def test_a_steady_rate_is_measured_as_it_is_from_the_start(seconds):
    rate = drained(200, seconds).tokens_per_s
    assert rate is not None
    assert rate == pytest.approx(200, rel=0.02)


def test_nothing_is_said_before_anything_was_seen():
    assert DrainRate().tokens_per_s is None
    assert drained(200, 0.25).tokens_per_s is None
    assert drained(0, 5).tokens_per_s is None
    assert not drained(200, 5).is_settled
    assert drained(200, MEMORY_S).is_settled


def test_the_latest_seconds_count_most():
    measured = drained(200, 30)
    for index in range(1, 121):
        measured.observe(10, 30 + index * 0.25, waiting=True)
    assert measured.tokens_per_s == pytest.approx(40, rel=0.2)


def test_time_without_anybody_waiting_is_no_measure_of_what_can_be_done():
    measured = drained(200, 10)
    before = measured.tokens_per_s
    measured.observe(1, 10.0, waiting=False)
    for now in range(20, 2000, 10):
        measured.observe(5, float(now), waiting=False)
    assert measured.tokens_per_s == pytest.approx(before, rel=0.01)


def test_what_is_expected_follows_what_was():
    expected = ExpectedOutput()
    for _ in range(200):
        expected.ended(7)
    assert expected.of(1000) == 7
    assert expected.of(3) == 3


def overloaded(rate: int, num_waiting: int, tenant: str = "", seconds: int = 20) -> Admission:
    """The queue is full; each of its requests will take 20 tokens."""
    admission = Admission(QueueBounds(num_waiting, 1 << 20))
    for key in range(num_waiting):
        admission.add(key, spec(tenant=tenant))
    admission.measure(0.0, can_serve=True)
    for second in range(1, seconds + 1):
        admission.num_done += rate
        admission.measure(float(second), can_serve=True)
    return admission


def test_when_to_come_again_is_what_waits_over_what_drains():
    failure = overloaded(rate=100, num_waiting=50).refusal([spec()], 600.0)
    assert failure is not None
    assert failure.kind is FailureKind.OVERLOADED
    assert failure.retry_after_s == 10  # 50 x 20 tokens at 100 tokens/s


@pytest.mark.parametrize(("rate", "seconds"), [(1_000_000, 1), (1, 60)])
def test_when_to_come_again_is_within_bounds(rate, seconds):
    failure = overloaded(rate=rate, num_waiting=50).refusal([spec()], 6000.0)
    assert failure is not None
    assert failure.retry_after_s == seconds


def test_a_light_tenant_waits_for_its_own_part_alone():
    admission = overloaded(rate=10, num_waiting=60, tenant="flood")
    assert admission.retry_after_s("flood") == 60
    assert admission.retry_after_s("light") == 1


def test_a_wait_beyond_the_deadline_is_refused_at_once():
    admission = overloaded(rate=10, num_waiting=50)
    admission.queue.end(0, 0)  # so there is a place
    assert admission.refusal([spec()], 99.0) is None
    failure = admission.refusal([spec()], 97.0)
    assert failure is not None
    assert failure.retry_after_s == 60


def test_nobody_is_refused_for_a_wait_that_is_hardly_measured():
    admission = overloaded(rate=1, num_waiting=50, seconds=3)
    admission.queue.end(0, 0)
    assert admission.refusal([spec()], 10.0) is None


def test_a_call_is_let_in_whole_or_not_at_all():
    admission = Admission(QueueBounds(max_requests=4, max_tokens=1000))
    admission.add(1, spec())
    assert admission.refusal([spec()] * 3, 600.0) is None
    assert admission.refusal([spec()] * 4, 600.0) is not None
    assert len(admission.queue) == 1

"""Where a request's time went, as clients and the log are told."""

import logging

from bootstrap.identity import Role
from bootstrap.messages import LegStats
from bootstrap.sampling import SamplingParams
from cluster.balancer.instructions import Measured
from cluster.balancer.metrics import Metrics
from cluster.balancer.pulse import Pulse
from cluster.balancer.request import RequestSpec
from cluster.balancer.stats import RequestStats
from cluster.balancer.timelines import Timelines

SPEC = RequestSpec("mine", (1, 2, 3), SamplingParams(seed=0, max_tokens=9))


def test_a_request_from_arrival_to_end(caplog):
    stats, timelines = RequestStats(10.0), Timelines(Metrics("m"), Pulse())
    timelines.began(1, SPEC, stats)
    timelines.measured(1, Measured(Role.PREFILL, LegStats(0.5, 1.0, 2)))
    timelines.tokens(1, 1, 12.0)
    timelines.tokens(1, 2, 15.0)
    timelines.measured(1, Measured(Role.DECODE, LegStats(0.0, 3.0, 0, transfer_s=0.25)))
    timelines.tokens(1, 1, 16.0)
    with caplog.at_level(logging.INFO):
        timelines.ended(1, "length", 16.0)
    assert stats.as_fields() == {
        "queue_s": 0.5,
        "prefill_s": 1.0,
        "transfer_s": 0.25,
        "handoff_s": 3.0,
        "decode_s": 3.0,
        "ttft_s": 2.0,
        "itl_s": round(4 / 3, 6),
        "total_s": 6.0,
        "cached_tokens": 2,
        "attempts": 1,
    }
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("request mine ended: length tokens=4 queue_s=0.5")
    assert 1 not in timelines


def test_metrics_of_a_request_from_arrival_to_end():
    metrics = Metrics("m")
    timelines = Timelines(metrics, Pulse())
    timelines.began(1, SPEC, RequestStats(10.0))
    timelines.dispatched(1, "p1", "d1")
    timelines.measured(1, Measured(Role.PREFILL, LegStats(0.5, 1.0, 2)))
    timelines.tokens(1, 1, 12.0)
    timelines.retried(1, "peer_lost")
    timelines.dispatched(1, "p1", "d2")
    timelines.tokens(1, 2, 15.0)
    timelines.measured(1, Measured(Role.DECODE, LegStats(0.25, 3.0, 1, 0.5, 4096)))
    timelines.ended(1, "length", 16.0)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    model = {"model_name": "m"}
    assert value("vllm:prompt_tokens_total", **model) == 3
    assert value("vllm:generation_tokens_total", **model) == 3
    assert value("vllm:prefix_cache_queries_total", **model) == 3
    assert value("vllm:prefix_cache_hits_total", **model) == 2
    assert value("vllm:request_success_total", finished_reason="length", **model) == 1
    assert value("vllm:time_to_first_token_seconds_sum", **model) == 2.0
    assert value("vllm:request_generation_tokens_sum", **model) == 3
    assert value("pdserve:handoff_gap_seconds_sum") == 3.0
    assert value("pdserve:transfer_seconds_sum") == 0.5
    assert value("pdserve:transfer_bytes_sum") == 4096
    assert value("pdserve:decode_admission_wait_seconds_sum") == 0.25
    assert value("pdserve:decode_prefix_cache_hits_total") == 1
    assert value("pdserve:continuations_total") == 1
    assert value("pdserve:pair_requests_total", prefill="p1", decode="d2") == 1


def test_the_pulse_is_of_the_last_seconds():
    pulse = Pulse()
    pulse.first_token(9.0, 0.0)
    for index in range(100):
        pulse.first_token(index / 100, 20.0)
        pulse.gap(0.5, 20.0)
        pulse.tokens(2, 20.0)
    beat = pulse.beat(25.0)
    assert (beat.ttft_p50_s, beat.ttft_p95_s, beat.itl_p50_s) == (0.5, 0.95, 0.5)
    assert beat.tokens_per_s == 20.0
    assert pulse.beat(40.0).ttft_p50_s is None


def test_what_never_came_is_unknown_and_a_second_attempt_keeps_the_first_ones_prefill():
    stats, timelines = RequestStats(0.0), Timelines(Metrics("m"), Pulse())
    timelines.began(1, SPEC, stats)
    timelines.measured(1, Measured(Role.PREFILL, LegStats(0.5, 1.0, 2)))
    timelines.tokens(1, 1, 1.0)
    timelines.retried(1, "peer_lost")
    timelines.measured(1, Measured(Role.PREFILL, LegStats(9.0, 9.0, 9)))
    timelines.ended(1, "cancelled", 5.0)
    fields = stats.as_fields()
    assert (fields["queue_s"], fields["cached_tokens"], fields["attempts"]) == (0.5, 2, 2)
    assert fields["itl_s"] is fields["handoff_s"] is fields["decode_s"] is None
    assert "decode_s" not in stats.line


def test_tokens_that_come_together_have_no_handoff_between_them():
    stats = RequestStats(0.0)
    stats.tokens(3, 2.0)
    assert (stats.ttft_s, stats.handoff_s, stats.itl_s) == (2.0, 0.0, 0.0)

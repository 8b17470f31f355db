"""Workloads, traces, figures and reports of the load test, without a server."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.errors import ConfigError
from cluster.bench.client import Seen
from cluster.bench.page import cumulative, in_flight, page
from cluster.bench.run import fitting, planned
from cluster.bench.settings import BenchSettings
from cluster.bench.summary import Objectives, distribution, percentile, summarize
from cluster.bench.traces import read_trace
from cluster.bench.workload import Lengths, at_rate, scaled, synthetic, token_ids

MOONCAKE = [
    {"timestamp": 27000, "input_length": 600, "output_length": 50, "hash_ids": [46, 47]},
    {"timestamp": 30000, "input_length": 1024, "output_length": 0, "hash_ids": [46, 48]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
VOCABULARY = tuple(range(10, 90))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def mooncake(folder: Path, entries: list[dict]) -> Path:
    return write(folder, "trace.jsonl", "\n".join(map(json.dumps, entries)))


def seen(due: float, times: list[float], num_output: int, failure: str = "") -> Seen:
    ended = times[-1] if times else due + 1
    return Seen(due, due, ended, tuple(times), 7, num_output, failure)


# --- workloads ---------------------------------------------------------------------------------


def test_equal_seeds_give_equal_workloads_and_shared_prefixes():
    make = [synthetic(5, Lengths(20, 40), Lengths(3, 9), 8, seed) for seed in (1, 1, 2)]
    assert make[0] == make[1] != make[2]
    prompts = [token_ids(request, VOCABULARY) for request in make[0]]
    assert all(20 <= len(prompt) <= 40 for prompt in prompts)
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 1
    assert len({tuple(prompt[8:16]) for prompt in prompts}) == 5
    assert set().union(*prompts) <= set(VOCABULARY)


@given(st.floats(0.1, 100), st.floats(0, 4), st.integers(1, 200))
def test_arrivals_never_go_back_and_begin_at_once(rate, burstiness, num_requests):
    requests = at_rate(
        synthetic(num_requests, Lengths(1, 1), Lengths(1, 1), 0, 0), rate, burstiness, 0
    )
    times = [request.at_s for request in requests]
    assert times[0] == 0
    assert all(a <= b for a, b in pairwise(times))


def test_arrivals_have_the_rate_that_was_asked_for():
    requests = synthetic(4001, Lengths(1, 1), Lengths(1, 1), 0, 0)
    for burstiness in (0.0, 1.0, 2.0):
        assert at_rate(requests, 5.0, burstiness, 3)[-1].at_s == pytest.approx(800, rel=0.1)
    gaps = [b.at_s - a.at_s for a, b in pairwise(at_rate(requests, 5.0, 0.0, 3))]
    assert max(gaps) == pytest.approx(0.2)


def test_a_mooncake_trace_keeps_its_shared_blocks(tmp_path):
    first, second = read_trace(mooncake(tmp_path, MOONCAKE), 10)
    assert (first.at_s, second.at_s) == (0.0, 3.0)
    assert (first.num_prompt, second.num_prompt) == (600, 1024)
    assert (first.num_output, second.num_output) == (50, 1)
    ids = [token_ids(request, VOCABULARY) for request in (first, second)]
    assert ids[0][:512] == ids[1][:512]
    assert ids[0][512:] != ids[1][512:600]


def test_scaling_keeps_what_is_shared(tmp_path):
    short = scaled(read_trace(mooncake(tmp_path, MOONCAKE), 10), rate=2.0, lengths=0.1)
    assert [request.at_s for request in short] == [0.0, 1.5]
    assert [request.num_prompt for request in short] == [60, 102]
    ids = [token_ids(request, VOCABULARY) for request in short]
    assert ids[0][:51] == ids[1][:51]


def test_an_azure_trace(tmp_path):
    first, second = read_trace(write(tmp_path, "a.csv", AZURE), 10)
    assert (first.num_prompt, first.num_output) == (4808, 10)
    assert second.at_s == pytest.approx(0.052, abs=1e-5)
    zoned = AZURE.replace("9799600", "979960+00:00").replace("0319600", "031960+00:00")
    assert read_trace(write(tmp_path, "b.csv", zoned), 1)[0].at_s == 0.0


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "", "allowed are synthetic"),
        ("a.csv", "", "no column TIMESTAMP"),
        ("a.csv", AZURE.replace("4808", "many"), "request 1 cannot be read"),
        ("a.csv", AZURE.replace("3180", "-3"), "request 2 cannot be read"),
        ("a.jsonl", "", "no requests"),
        ("a.jsonl", "[1]", "request 1 cannot be read"),
        ("a.jsonl", json.dumps({**MOONCAKE[0], "hash_ids": [1]}), "do not cover"),
        ("a.jsonl", json.dumps({**MOONCAKE[0], "hash_ids": [1, 2, 3]}), "do not cover"),
    ],
)
def test_a_bad_trace_says_where(tmp_path, name, text, said):
    with pytest.raises(ConfigError, match=said):
        read_trace(write(tmp_path, name, text), 10)


def test_a_missing_trace(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none.csv", 10)


def test_what_the_model_cannot_take_is_said_before_the_test():
    offered = planned(BenchSettings(rate=1.0, num_requests=4, input_tokens="90:100"))
    assert fitting(offered, None, skip=False) == offered
    with pytest.raises(ConfigError, match="--length-scale"):
        fitting(offered, 100, skip=False)
    with pytest.raises(ConfigError, match="no request fits"):
        fitting(offered, 100, skip=True)
    assert fitting(offered, 164, skip=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "needs one of them"),
        ({"rate": 1.0, "concurrency": 1}, "choose one"),
        ({"rate": 0.0}, "rate=0.0: allowed"),
        ({"rate": 1.0, "num_requests": 0}, "num_requests=0: allowed"),
        ({"rate": 1.0, "input_tokens": "9:3"}, "LOW <= HIGH"),
        ({"rate": 1.0, "rate_scale": 2.0}, "rate_scale=2.0: changes nothing with"),
        ({"workload": "a.csv", "input_tokens": "9"}, "input_tokens=9: changes nothing"),
        ({"concurrency": 2, "burstiness": 2.0}, "changes nothing without a rate"),
        ({"rate": 1.0, "output_tokens": "x"}, "allowed are N and LOW:HIGH"),
    ],
)
def test_wrong_settings_name_the_key(settings, said):
    with pytest.raises(ConfigError, match=said):
        planned(BenchSettings(**settings))


# --- figures -----------------------------------------------------------------------------------


def test_goodput_counts_every_offered_request():
    objectives = Objectives.parse("ttft=500ms, tpot=0.1s")
    answers = [
        seen(0.0, [0.4, 0.5, 0.6], 3),
        seen(1.0, [1.6, 1.7], 2),  # late first token
        seen(2.0, [2.1, 2.5], 2),  # slow after it
        seen(3.0, [], 0, "503: busy"),
    ]
    facts = summarize(answers, objectives, elapsed_s=4.0)
    assert facts["goodput"] == 0.25
    assert facts["requests"]["failures"] == {"503: busy": 1}
    assert facts["output_tokens"] == 7
    assert facts["per_s"]["good_requests"] == 0.25
    assert facts["times_s"]["ttft"]["max"] == pytest.approx(0.6)
    assert facts["times_s"]["tpot"]["p50"] == pytest.approx(0.1)
    json.dumps(facts)


def test_a_late_client_does_not_flatter_the_server():
    late = Seen(1.0, 3.0, 3.5, (3.2, 3.5), 7, 2)
    assert late.ttft_s == pytest.approx(2.2)
    assert summarize([late], Objectives({}), 4.0)["client_late_s"]["p99"] == pytest.approx(2.0)


def test_single_tokens_have_no_time_per_token():
    assert summarize([seen(0.0, [0.5], 1)], Objectives({}), 1.0)["times_s"]["tpot"] == {}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.integers(1, 100))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values, percent):
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= percent / 100 * len(ordered)
    assert distribution(values)["max"] == max(values)


@pytest.mark.parametrize(
    "text", ["ttft", "ttft=1s,ttft=2s", "ttft=x", "ttft=-1", "pace=3", "ttft=infs"]
)
def test_bad_objectives(text):
    with pytest.raises(ConfigError, match="slo="):
        Objectives.parse(text)


# --- the page ----------------------------------------------------------------------------------


def test_the_page_holds_the_figures_and_escapes_what_servers_say():
    answers = [seen(0.0, [0.25, 0.5], 2), seen(0.5, [], 0, "500: <script>alert(1)</script>")]
    facts = summarize(answers, Objectives.parse("ttft=100ms"), 2.0)
    text = page({**facts, "model": "m<b>", "url": "http://x", "settings": {}}, answers)
    assert "<script>" not in text
    assert "m<b>" not in text
    assert "250.0" in text
    assert "goodput 0.0%" in text
    assert text.count("<svg") == 5


def test_in_flight_goes_up_and_down():
    answers = [Seen(0, 0, 2, (), 1, 0), Seen(1, 1, 3, (), 1, 0)]
    assert in_flight(answers)[1::2] == [(0, 1.0), (1, 2.0), (2, 1.0), (3, 0.0)]
    assert cumulative([0.2, 0.1]) == [(100.0, 0.5), (200.0, 1.0)]

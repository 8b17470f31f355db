"""The load test against a real pair over HTTP, through its command line."""

import json

import pytest

from cluster import cli
from tests.support import conformance_cluster

http = conformance_cluster.http
model_dir = conformance_cluster.model_dir


@pytest.fixture
def bench(http, tmp_path, capsys):
    """Runs `pdserve bench` at the endpoint: its exit code, its report and what it printed."""

    def run(*arguments: str) -> tuple[int, dict, str]:
        report = tmp_path / "report.json"
        code = cli.run(["bench", f"--url={http.base_url}", f"--json={report}", *arguments])
        facts = json.loads(report.read_text()) if report.exists() and not code else {}
        captured = capsys.readouterr()
        return code, facts, captured.out + captured.err

    return run


def test_an_open_loop(bench, tmp_path):
    html = tmp_path / "report.html"
    code, facts, printed = bench(
        "--rate=50",
        "--num-requests=12",
        "--input-tokens=5:20",
        "--output-tokens=6",
        "--slo=ttft=60s,tpot=60s",
        f"--html={html}",
    )
    assert code == 0
    assert facts["requests"] == {"offered": 12, "completed": 12, "failed": 0, "failures": {}}
    assert facts["output_tokens"] == 72
    assert facts["goodput"] == 1.0
    assert all(5 <= one["prompt_tokens"] <= 20 for one in facts["each"])
    assert all(0 < one["ttft_s"] <= one["e2e_s"] for one in facts["each"])
    assert "goodput: 100.0%" in printed
    assert "<svg" in html.read_text()


def test_a_closed_loop_over_a_trace(bench, tmp_path):
    trace = tmp_path / "trace.jsonl"
    entry = {"input_length": 6144, "output_length": 400, "hash_ids": list(range(12))}
    trace.write_text("\n".join(json.dumps({**entry, "timestamp": t}) for t in range(6)))
    shape = (f"--workload={trace}", "--concurrency=2", "--warmup=0")
    code, facts, _ = bench(*shape, "--length-scale=0.005")
    assert code == 0
    assert {(one["prompt_tokens"], one["output_tokens"]) for one in facts["each"]} == {(36, 2)}
    code, _, printed = bench(*shape)
    assert code == 2
    assert "--skip-too-long" in printed


def test_a_server_that_refuses_everything_fails_the_test(bench):
    code, _, printed = bench("--rate=50", "--num-requests=3", "--model=another", "--warmup=0")
    assert code == 1
    assert "404" in printed


def test_nobody_listens(capsys):
    assert cli.run(["bench", "--url=http://127.0.0.1:9", "--rate=1"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err

"""The endpoint under requests of every kind: no 5xx but an honest 503, no hang, no leaked page.

`PDSERVE_FUZZ_EXAMPLES=10000` makes as many requests, new ones at each run; by default they are few
and the same.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, note, settings

from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.fuzzing import Shot, shots
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

NUM_EXAMPLES = int(os.environ.get("PDSERVE_FUZZ_EXAMPLES", "400"))
HANG_S = 60.0
BODY = {"model": MODEL_NAME, "prompt": "Hello there", "max_tokens": 12, "temperature": 0}
PRIVATE = ("Traceback", "site-packages", ".py", "/tmp", "tcp://", "0x")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineCluster]:
    model = make_tiny_model(tmp_path_factory.mktemp("model"))
    with EngineCluster(model, max_model_len=96, num_blocks=96, prefix_caching=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def balancer(
    cluster: EngineCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpBalancer]:
    model_dir = Path(next(iter(cluster.engines.values())).settings.model_dir)
    with HttpBalancer(cluster.bootstrap, model_dir, MODEL_NAME) as balancer:
        balancer.wait_ready()
        yield balancer


def check_error(status: int, content: bytes) -> None:
    """OpenAI's error object, and nothing in it that is not for clients."""
    error = json.loads(content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["type"] != "server_error", (status, error)
    assert not [word for word in PRIVATE if word in error["message"]], error


def check_stream(lines: list[str]) -> None:
    """Every event is JSON; the last is DONE, or an error that a client can act on."""
    events = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    assert events
    if events[-1] == "[DONE]":
        events.pop()
    for event in events:
        decoded = json.loads(event)
        if "error" in decoded:
            check_error(200, event.encode())


def fire(client: httpx.Client, shot: Shot) -> int:
    """Send one request and check its answer; the status."""
    with client.stream(
        shot.method, shot.path, content=shot.content, headers=dict(shot.headers)
    ) as answer:
        status = answer.status_code
        if "event-stream" in answer.headers.get("content-type", ""):
            lines: list[str] = []
            for line in answer.iter_lines():
                lines.append(line)
                if shot.leave_after is not None and len(lines) > shot.leave_after:
                    return status
            check_stream(lines)
            return status
        content = answer.read()
    assert status < 500 or (status == 503 and "retry-after" in answer.headers), (status, content)
    if status >= 400 and shot.method != "HEAD":
        check_error(status, content)
    return status


# What hypothesis says of its own long names while it explains a failure.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.timeout(0 if "PDSERVE_FUZZ_EXAMPLES" in os.environ else 300)
def test_nothing_breaks(cluster: EngineCluster, balancer: HttpBalancer) -> None:
    document = balancer.get("/openapi.json").json()
    statuses: Counter[int] = Counter()
    # A connection for each: what one request does to its connection must not be the next one's fault.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=balancer.url, timeout=HANG_S, limits=limits) as client:
        before = client.post("/v1/completions", json=BODY).json()["choices"]

        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            database=None,
            derandomize="PDSERVE_FUZZ_EXAMPLES" not in os.environ,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(shots(document, MODEL_NAME))
        def shoot(shot: Shot) -> None:
            note(repr(shot))
            statuses[fire(client, shot)] += 1

        shoot()
        print(dict(sorted(statuses.items())))
        assert statuses[200] > NUM_EXAMPLES / 50, "hardly any request was valid: it tests little"
        requests = lambda: client.get("/status").json()["requests"]  # noqa: E731
        wait_for(lambda: requests() == {"running": 0, "waiting": 0}, what="no request left")
        cluster.wait_idle()
        assert client.post("/v1/completions", json=BODY).json()["choices"] == before

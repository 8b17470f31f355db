"""An administrator's commands carried out by real engines."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core import StepPlan, StepResult
from engine.loop import Stepper
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model

KEY = {"Authorization": "Bearer admin-key"}
PROMPT = list(range(10, 42))  # 8 blocks


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model_dir: Path) -> Iterator[EngineCluster]:
    with EngineCluster(model_dir, num_blocks=512) as cluster:
        yield cluster


@pytest.fixture
def balancer(engines: EngineCluster, model_dir: Path, tmp_path: Path) -> Iterator[HttpBalancer]:
    keys = tmp_path / "admins"
    keys.write_text("admin-key\n")
    with HttpBalancer(
        engines.bootstrap, model_dir, MODEL_NAME, admin_key_file=str(keys)
    ) as balancer:
        balancer.wait_ready()
        yield balancer


def admin(balancer: HttpBalancer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{balancer.url}/admin/{path}", headers=KEY, json=body, timeout=60)


def complete(balancer: HttpBalancer, **fields: Any) -> str:
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    response = httpx.post(f"{balancer.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


class Slowly:
    """A stepper that takes its time: an answer of many tokens outlasts any stall of the test."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        time.sleep(0.05)
        return self._stepper.run(plan)


def cached(engines: EngineCluster) -> dict[str, int]:
    return {name: engine.load().pages["cached"] for name, engine in engines.engines.items()}


def test_a_flush_forgets_what_both_engines_cached(
    engines: EngineCluster, balancer: HttpBalancer
) -> None:
    before = complete(balancer)
    engines.wait_idle()
    held = cached(engines)
    assert held["p0"] >= 8
    assert held["d0"] >= 8
    answer = admin(balancer, "flush_cache")
    assert answer.status_code == 200, answer.text
    flushed = answer.json()["engines"]
    assert {name: engine["num_blocks"] for name, engine in flushed.items()} == held
    assert complete(balancer) == before


def test_a_flush_is_refused_while_pages_are_live(
    engines: EngineCluster, balancer: HttpBalancer
) -> None:
    complete(balancer)
    engines.wait_idle()
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True}
    url = f"{balancer.url}/v1/completions"
    loop = engines.engines["d0"]._loop
    loop._stepper = Slowly(loop._stepper)
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()  # held: without it the stream would be closed
        next(lines)
        answer = admin(balancer, "flush_cache")
    assert answer.status_code == 409
    assert "d0: 1 rooms are live" in answer.json()["error"]["message"]
    engines.wait_idle()
    assert cached(engines)["d0"] > 0


def test_engines_set_their_log_level(engines: EngineCluster, balancer: HttpBalancer) -> None:
    before = logging.getLogger().level
    try:
        answer = admin(balancer, "log_level", level="error")
        assert sorted(answer.json()["engines"]) == ["d0", "p0"]
        assert logging.getLogger().level == logging.ERROR
    finally:
        logging.getLogger().setLevel(before)

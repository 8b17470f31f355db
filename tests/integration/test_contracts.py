"""Engines whose KV contracts differ never pair, and everybody who asks is told the field."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from bootstrap.identity import Role
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("decode", "named"),
    [({"block_size": 8}, "block_size: 4 != 8"), ({"dtype": "bfloat16"}, "dtype: 'float64' != ")],
)
def test_unequal_contracts_never_pair(model_dir: Path, decode: dict[str, Any], named: str) -> None:
    with (
        EngineCluster(model_dir, decode=decode) as cluster,
        HttpBalancer(cluster.bootstrap, model_dir, MODEL_NAME, pair_wait_s=0.2) as balancer,
    ):
        wait_for(lambda: len(balancer.get("/status").json()["members"]) == 2, what="both joined")
        status = balancer.get("/status").json()
        assert status["num_pairs"] == 0
        assert named in str(status["refusals"])
        ready = balancer.get("/ready")
        assert ready.status_code == 503
        assert named in str(ready.json())
        body = {"model": MODEL_NAME, "prompt": "x", "max_tokens": 4}
        answer = httpx.post(f"{balancer.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        loads = [engine.load() for engine in cluster.engines.values()]
        assert all(load.num_rooms == 0 for load in loads)


def test_a_matching_engine_serves_beside_one_that_does_not(model_dir: Path) -> None:
    with (
        EngineCluster(model_dir, num_decode=2) as cluster,
        HttpBalancer(cluster.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):
        balancer.wait_ready()
        cluster.engines["d1"].stop()
        wait_for(lambda: balancer.get("/status").json()["num_pairs"] == 1, what="d1 left")
        cluster.start_engine(Role.DECODE, 1, block_size=8)
        wait_for(lambda: balancer.get("/status").json()["refusals"], what="a refusal")
        with balancer.client() as client:
            for seed in range(4):
                answer = client.completions.create(model=MODEL_NAME, prompt="x", seed=seed)
                assert answer.choices[0].finish_reason is not None
        assert cluster.engines["d1"].load().num_rooms == 0

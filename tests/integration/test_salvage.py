"""A decode engine dies in the middle of a stream: the next attempt computes generated tokens only."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bootstrap.sampling import SamplingParams
from tests.support.engine_cluster import EngineCluster
from tests.support.process_cluster import MODEL_NAME, ProcessCluster
from tests.support.raw_balancer import RawBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

BLOCK = 4
PROMPT = list(range(20, 62))  # ten blocks and a half
NUM_FULL = len(PROMPT) // BLOCK * BLOCK
GREEDY = SamplingParams(seed=0, max_tokens=40, temperature=0.0)
ONE_TOKEN = SamplingParams(seed=0, max_tokens=1, temperature=0.0)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("lease_s", "num_cached"), [(60.0, NUM_FULL), (0.0, 0)])
def test_the_prompts_blocks_outlive_other_prompts_that_come_between(
    model_dir: Path, lease_s: float, num_cached: int
) -> None:
    pool = {"num_blocks": 24, "salvage_lease_s": lease_s}
    with (
        EngineCluster(model_dir, num_decode=2, prefill=pool) as cluster,
        RawBalancer() as balancer,
    ):
        p0, d0, d1 = (cluster.engines[name] for name in ("p0", "d0", "d1"))
        expected = balancer.generate(p0, d0, PROMPT, GREEDY)
        cluster.wait_idle(30.0)  # else pages that are still leased would not be flushed
        p0.core.ledger.flush_cache()
        with cluster.gate("d0") as gate:
            first = balancer.dispatch(p0, d0, PROMPT, GREEDY)
            gate.wait_entered()  # it holds the handoff, and will never go on
            wait_for(lambda: p0.load().num_rooms == 0, what="the handoff to be accepted")
            for number in range(4):  # more than the pool, and nobody will come back for them
                balancer.generate(p0, d1, [200 + number, *range(100, 130)], ONE_TOKEN)
            delivered = first.output
            second = balancer.dispatch(
                p0, d1, [*PROMPT, *delivered], GREEDY, output_offset=len(delivered)
            )
            wait_for(lambda: second.finish or second.failures, what="the continuation")
            balancer.abort(d0, first)
        assert delivered + second.output == expected
        assert second.stats["p0"].num_cached_tokens == num_cached
        cluster.wait_idle()


def test_a_stream_whose_decode_engine_is_killed_goes_on_where_its_prompt_is(
    model_dir: Path, tmp_path: Path
) -> None:
    with (
        ProcessCluster(
            model_dir, tmp_path, num_prefill=2, num_decode=2, num_blocks=2048
        ) as cluster,
        ThreadPoolExecutor(1) as thread,
    ):
        client = cluster.balancer.client()

        def text(seen: list[str]) -> str:
            for chunk in client.completions.create(
                model=MODEL_NAME,
                prompt=PROMPT,
                max_tokens=500,  # so that it still runs when the engine is killed
                seed=3,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                seen.append(chunk.choices[0].text)
            return "".join(seen)

        expected = text([])
        dispatched = counts(cluster, "pdserve:pair_requests_total")
        seen: list[str] = []
        future = thread.submit(text, seen)
        wait_for(lambda: len(seen) > 5, what="the stream to run")
        hits = prefix_hits(cluster)
        cluster.kill(decode_engine_of_new(cluster, dispatched))
        assert future.result(120) == expected
        assert prefix_hits(cluster) - hits >= NUM_FULL, "found at the second attempt"


def counts(cluster: ProcessCluster, name: str) -> dict[str, float]:
    """A counter's values by labels."""
    lines = cluster.balancer.get("/metrics").text.splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith(f"{name}{{")]
    return {labels: float(value) for labels, _, value in found}


def prefix_hits(cluster: ProcessCluster) -> float:
    """Prompt tokens that prefill engines had."""
    (value,) = counts(cluster, "vllm:prefix_cache_hits_total").values()
    return value


def decode_engine_of_new(cluster: ProcessCluster, before: dict[str, float]) -> str:
    """Where the one request went that was dispatched since."""
    now = counts(cluster, "pdserve:pair_requests_total")
    (labels,) = (labels for labels, value in now.items() if value != before.get(labels))
    return re.findall(r'decode="(\w+)"', labels)[0]

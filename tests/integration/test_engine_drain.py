"""Engines that leave under streams: real wire, real pages, real HTTP clients."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from bootstrap.membership import WorkerState
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

NUM_STREAMS = 6
NUM_TOKENS = 150


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cluster(model_dir: Path) -> Iterator[EngineCluster]:
    with EngineCluster(model_dir, num_prefill=2, num_decode=2, num_blocks=1024) as made:
        yield made


@pytest.fixture
def balancer(cluster: EngineCluster, model_dir: Path) -> Iterator[HttpBalancer]:
    with HttpBalancer(cluster.bootstrap, model_dir, MODEL_NAME) as made:
        made.wait_ready()
        wait_for(lambda: made.get("/status").json()["num_pairs"] == 4, what="four pairs")
        yield made


class Streams:
    """One client per stream."""

    def __init__(self, balancer: HttpBalancer) -> None:
        self._client = balancer.client()
        self._num_pieces = [0] * NUM_STREAMS
        self._threads = ThreadPoolExecutor(NUM_STREAMS)
        self._futures: list[Future[str]] = [
            self._threads.submit(self._run, number) for number in range(NUM_STREAMS)
        ]

    def wait_begun(self) -> None:
        """Until every stream has given a second piece, which the decode engine sent."""
        wait_for(lambda: min(self._num_pieces) >= 2, 60.0, "two pieces of each stream")

    def texts(self) -> list[str]:
        """What each said, once all have ended well."""
        texts = [future.result(60) for future in self._futures]
        self._threads.shutdown()
        return texts

    def _run(self, number: int) -> str:
        text, finish = "", None
        for chunk in self._client.completions.create(
            model=MODEL_NAME,
            prompt=[10 + number, *range(20, 45)],
            max_tokens=NUM_TOKENS,
            temperature=0.0,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            text += chunk.choices[0].text
            finish = chunk.choices[0].finish_reason
            self._num_pieces[number] += 1
        assert finish == "length"
        return text


def undisturbed(balancer: HttpBalancer) -> list[str]:
    return Streams(balancer).texts()


def all_computed(balancer: HttpBalancer, num_prompts: int) -> bool:
    """Whether the balancer has the bootstrap tokens of all `num_prompts` so far."""
    count = f'vllm:request_prefill_time_seconds_count{{model_name="{MODEL_NAME}"}} {num_prompts}.0'
    return count in balancer.get("/metrics").text


def states(balancer: HttpBalancer) -> dict[str, str]:
    return {m["worker"]: m["state"] for m in balancer.get("/status").json()["members"]}


@pytest.mark.parametrize("leaving", ["p0", "d0"])
def test_an_engine_that_drains_finishes_its_streams_says_goodbye_and_keeps_no_page(
    cluster: EngineCluster, balancer: HttpBalancer, leaving: str
) -> None:
    expected = undisturbed(balancer)
    streams = Streams(balancer)
    streams.wait_begun()
    engine = cluster.engines[leaving]
    engine.drain(60.0)
    engine.drain(0.0)  # a second time changes nothing
    wait_for(lambda: engine.load().state is WorkerState.DRAINING, what="the drain")
    wait_for(lambda: states(balancer).get(leaving) != "ready", what="the balancer's word")
    assert balancer.get("/status").json()["num_pairs"] == 2
    assert streams.texts() == expected
    assert engine.wait().endswith("every room finished here")
    engine.stop()
    wait_for(lambda: leaving not in states(balancer), what="the goodbye")
    assert "pdserve:request_retries_total{" not in balancer.get("/metrics").text
    cluster.wait_idle()
    assert undisturbed(balancer) == expected  # over the pair that is left


@pytest.mark.parametrize("leaving", ["p0", "d0"])
def test_streams_that_a_drain_has_no_time_for_go_on_elsewhere_with_no_token_lost(
    cluster: EngineCluster, balancer: HttpBalancer, leaving: str
) -> None:
    expected = undisturbed(balancer)
    engine = cluster.engines[leaving]
    with cluster.gate(leaving) as gate:
        streams = Streams(balancer)
        gate.wait_entered()  # some of its rooms are in the middle
        engine.drain(0.0)
        gate.open()
        assert "went to other engines" in engine.wait()
        engine.stop()
        del cluster.engines[leaving]  # what it held ended with it
        assert streams.texts() == expected
    metrics = balancer.get("/metrics").text
    assert 'pdserve:request_retries_total{reason="draining"}' in metrics
    cluster.wait_idle()


def test_a_prefill_engine_leaves_only_when_its_handoffs_are_accepted(
    cluster: EngineCluster, balancer: HttpBalancer
) -> None:
    expected = undisturbed(balancer)
    engine = cluster.engines["p0"]
    with cluster.gate("d0") as d0, cluster.gate("d1") as d1:
        streams = Streams(balancer)
        d0.wait_entered()
        d1.wait_entered()  # both decode engines stand still: some handoff waits for its answer
        wait_for(lambda: all_computed(balancer, 2 * NUM_STREAMS), what="all prompts computed")
        engine.drain(60.0)
        wait_for(lambda: states(balancer)["p0"] == "draining", what="the drain")
        d0.open()
        d1.open()
        assert streams.texts() == expected
    assert engine.wait().endswith("every room finished here")
    engine.stop()
    assert "pdserve:request_retries_total{" not in balancer.get("/metrics").text
    cluster.wait_idle()

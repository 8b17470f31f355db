"""Prefill and decode engines over a real wire and real transports, without HTTP.

The oracle is one engine that does both phases; parity with transformers is tested over HTTP.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.messages import FailureReason
from bootstrap.sampling import FinishReason, SamplingParams
from engine.loader import load_model
from engine.solo import SoloEngine
from tests.support.engine_cluster import EngineCluster
from tests.support.raw_balancer import RawBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

BLOCK = 4


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def solo(model_dir: Path) -> SoloEngine:
    return SoloEngine(load_model(model_dir, "float64", "cpu"), block_size=BLOCK)


@pytest.fixture
def balancer() -> Iterator[RawBalancer]:
    with RawBalancer() as balancer:
        yield balancer


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    return random.Random(f"{num_tokens}/{seed}").choices(range(3, 300), k=num_tokens)


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(seed=0, max_tokens=max_tokens, temperature=0.0)


def seeded(seed: int, max_tokens: int = 12) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=max_tokens, temperature=0.9, top_p=0.95)


@pytest.mark.parametrize("transfer", ["nixl", "mooncake", "fake"])
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("chunk", [BLOCK, 2 * BLOCK, 7])
def test_every_block_and_chunk_edge(
    model_dir: Path,
    solo: SoloEngine,
    balancer: RawBalancer,
    transfer: str,
    prefix_caching: bool,
    chunk: int,
) -> None:
    lengths = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 37)
    with EngineCluster(
        model_dir,
        transfer=transfer,
        prefix_caching=prefix_caching,
        max_num_batched_tokens=chunk,
    ) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        for length in lengths:
            prompt = prompt_of(length)
            (expected,) = solo.generate([prompt], [greedy()], chunk_size=16)
            for _ in range(3):
                assert balancer.generate(p0, d0, prompt, greedy()) == expected
        cluster.wait_idle()


def test_a_second_turn_moves_only_new_blocks(model_dir: Path, balancer: RawBalancer) -> None:
    with EngineCluster(model_dir, transfer="nixl") as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        prompt = prompt_of(40)
        answer = balancer.generate(p0, d0, prompt, greedy(9))
        first = p0.load().counters["transfer_written_bytes"]
        turn_2 = [*prompt, *answer, *prompt_of(7, seed=1)]
        outcome = balancer.dispatch(p0, d0, turn_2, greedy(4))
        wait_for(lambda: outcome.finish, what="turn 2")
        second = p0.load().counters["transfer_written_bytes"] - first
        block_bytes = first // 10
        assert first == 10 * block_bytes
        # 56 tokens are 14 blocks; decode holds those of the first 48, whose KV it computed or got.
        assert second == 2 * block_bytes
        assert outcome.stats["d0"].num_cached_tokens == 48
        cluster.wait_idle()


@pytest.mark.parametrize("ending", ["eos", "stop_id", "stop_string", "max_tokens"])
def test_an_ending_bootstrap_token_costs_no_transfer_and_no_decode(
    model_dir: Path, balancer: RawBalancer, ending: str
) -> None:
    with EngineCluster(model_dir) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        prompt = prompt_of(10)
        (token,) = balancer.generate(p0, d0, prompt, greedy(1))
        sampling = greedy(1 if ending == "max_tokens" else 5)
        stop_ids: tuple[int, ...] = ()
        if ending in ("eos", "stop_id"):
            sampling = SamplingParams(seed=0, max_tokens=5, temperature=0, stop_token_ids=(token,))
        elif ending == "stop_string":
            stop_ids = (token,)
        outcome = balancer.dispatch(p0, d0, prompt, sampling, bootstrap_stop_ids=stop_ids)
        wait_for(lambda: outcome.finish, what="the end")
        cluster.wait_idle()
        assert outcome.output == [token]
        length_or_stop = FinishReason.LENGTH if ending == "max_tokens" else FinishReason.STOP
        assert outcome.finish is length_or_stop
        assert not outcome.failures
        # Only cached blocks may have gone out: the prompt's two full ones.
        loads = [engine.load() for engine in cluster.engines.values()]
        assert all(load.counters["transfer_num_writes"] <= 1 for load in loads)
        assert "d0" not in outcome.stats


def test_min_tokens_holds_back_the_stop(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer
) -> None:
    prompt = prompt_of(10)
    (free,) = solo.generate([prompt], [greedy(6)], chunk_size=16)
    sampling = SamplingParams(
        seed=0, max_tokens=6, temperature=0, stop_token_ids=(free[0],), min_tokens=3
    )
    (expected,) = solo.generate([prompt], [sampling], chunk_size=16)
    with EngineCluster(model_dir) as cluster:
        engines = cluster.engines
        assert balancer.generate(engines["p0"], engines["d0"], prompt, sampling) == expected
    assert free[0] not in expected[:3]


def test_64_mixed_requests_on_tiny_pools(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer
) -> None:
    """P holds 2 of the largest requests, D 2.5: admission, retraction and backpressure all happen."""
    dice = random.Random(5)
    lengths = [dice.randint(1, 40) for _ in range(64)]
    sampling = [seeded(i, dice.randint(1, 24)) for i in range(64)]
    prompts = [prompt_of(length, seed=i) for i, length in enumerate(lengths)]
    expected = solo.generate(prompts, sampling, chunk_size=32)
    with EngineCluster(
        model_dir,
        transfer="nixl",
        max_num_batched_tokens=16,
        prefill={"num_blocks": 2 * 10},
        decode={"num_blocks": 40},
    ) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        outcomes = [
            balancer.dispatch(p0, d0, *args) for args in zip(prompts, sampling, strict=True)
        ]
        wait_for(lambda: all(o.finish or o.failures for o in outcomes), 120.0, "64 answers")
        assert [o.failures for o in outcomes] == [{}] * 64
        assert [o.output for o in outcomes] == expected
        cluster.wait_idle()
        assert d0.load().counters["retractions"] > 0


def test_seeded_sampling_is_the_same_alone_in_a_batch_and_over_another_pair(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer
) -> None:
    prompts = [prompt_of(9 + i, seed=i) for i in range(6)]
    sampling = [seeded(100 + i) for i in range(6)]
    expected = solo.generate(prompts, sampling, chunk_size=64)
    with EngineCluster(model_dir, num_prefill=2, num_decode=2) as cluster:
        engines = cluster.engines
        for p, d in (("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1")):
            pair = engines[p], engines[d]
            alone = [balancer.generate(*pair, *a) for a in zip(prompts, sampling, strict=True)]
            assert alone == expected
            batch = [balancer.dispatch(*pair, *a) for a in zip(prompts, sampling, strict=True)]
            wait_for(lambda batch=batch: all(o.finish for o in batch), what="the batch")
            assert [o.output for o in batch] == expected
        cluster.wait_idle()


def test_an_attempt_continues_another_exactly(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer
) -> None:
    prompt, sampling = prompt_of(11), seeded(7, 16)
    (whole,) = solo.generate([prompt], [sampling], chunk_size=16)
    with EngineCluster(model_dir) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        for delivered in (1, 2, 5, 14, 15):
            outcome = balancer.dispatch(
                p0, d0, [*prompt, *whole[:delivered]], sampling, output_offset=delivered
            )
            wait_for(lambda outcome=outcome: outcome.finish, what="the continuation")
            assert min(outcome.tokens) == delivered
            assert outcome.output == whole[delivered:]


def test_engines_refuse_what_they_can_never_serve(model_dir: Path, balancer: RawBalancer) -> None:
    with EngineCluster(model_dir, num_blocks=16, max_model_len=128) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        for prompt, sampling, reason in (
            (prompt_of(70), greedy(4), FailureReason.TOO_LARGE),
            (prompt_of(60), greedy(30), FailureReason.TOO_LARGE),
            ([5, 300], greedy(4), FailureReason.BAD_REQUEST),
        ):
            outcome = balancer.dispatch(p0, d0, prompt, sampling)
            wait_for(lambda outcome=outcome: outcome.failures, what="a refusal")
            reasons = {failure.reason for failure in outcome.failures.values()}
            assert reasons <= {reason, FailureReason.PEER_ABORTED}
        cluster.wait_idle()
        balancer.generate(p0, d0, prompt_of(9), greedy())

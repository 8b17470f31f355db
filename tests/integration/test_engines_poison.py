"""A model whose one token is poison: requests that meet it end, and nothing of them stays behind."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bootstrap.messages import FailureReason
from bootstrap.sampling import GrammarKind, GrammarSpec, SamplingParams
from engine.loader import load_model
from engine.solo import SoloEngine
from tests.support.engine_cluster import EngineCluster
from tests.support.raw_balancer import Outcome, RawBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

POISON, POISON_TEXT = 299, "01"
BLOCK = 4
GREEDY = SamplingParams(seed=0, max_tokens=10, temperature=0.0, logit_bias=((POISON, -100.0),))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = np.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def solo(model_dir: Path) -> SoloEngine:
    return SoloEngine(load_model(model_dir, "float64", "cpu"), BLOCK)


@pytest.fixture
def balancer() -> Iterator[RawBalancer]:
    with RawBalancer() as balancer:
        yield balancer


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    return random.Random(f"{num_tokens}/{seed}").choices(range(3, 299), k=num_tokens)


def numerical(outcome: Outcome) -> bool:
    """Whether the room failed, and of nothing else."""
    wait_for(lambda: outcome.failures, 30.0, "a failure")
    reasons = {failure.reason for failure in outcome.failures.values()}
    return reasons <= {FailureReason.NUMERICAL, FailureReason.PEER_ABORTED} and not outcome.finish


@pytest.mark.parametrize("where", [0, 5, 11])
def test_a_poisoned_prompt_ends_on_prefill_and_nothing_of_it_is_cached(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer, where: int
) -> None:
    poisoned = prompt_of(12, seed=1)
    poisoned[where] = POISON
    neighbours = [prompt_of(12, seed=seed) for seed in range(2, 8)]
    expected = solo.generate(neighbours, [GREEDY] * 6, 16)
    # So few pages that the neighbours compute on those that the poison has touched.
    with EngineCluster(model_dir, max_num_batched_tokens=16, num_blocks=20) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        for _ in range(3):
            bad = balancer.dispatch(p0, d0, poisoned, GREEDY)
            good = [balancer.dispatch(p0, d0, prompt, GREEDY) for prompt in neighbours]
            assert numerical(bad)
            assert not bad.tokens
            wait_for(lambda good=good: all(o.finish or o.failures for o in good), 30.0, "answers")
            assert [outcome.output for outcome in good] == expected
        cluster.wait_idle()
        num_clean = 6 * 12 // BLOCK  # the most that the neighbours' prompts can leave
        assert cluster.prefill_core().ledger.counts()["cached"] <= num_clean


@pytest.mark.parametrize("num_before", [1, 2, 3, 4, 6, 9])
def test_poison_on_decode_ends_its_request_and_names_no_block_of_it(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer, num_before: int
) -> None:
    """The grammar puts the poison behind `num_before` clean tokens; token 0 comes from prefill."""
    prompt, neighbour = prompt_of(6, seed=1), prompt_of(9, seed=2)
    grammar = GrammarSpec(GrammarKind.REGEX, "z" * num_before + POISON_TEXT + "z{20}")
    fatal = SamplingParams(
        seed=0, max_tokens=30, temperature=0.0, grammar=grammar, logit_bias=((POISON, 100.0),)
    )
    (expected,) = solo.generate([neighbour], [GREEDY], 16)
    with EngineCluster(model_dir) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        for _ in range(2):
            bad = balancer.dispatch(p0, d0, prompt, fatal)
            good = balancer.dispatch(p0, d0, neighbour, GREEDY)
            assert numerical(bad)
            wait_for(lambda good=good: good.finish, 30.0, "an answer")
            assert good.output == expected
            delivered = bad.output
            assert len(delivered) == num_before + 1
            assert delivered[-1] == POISON
        cluster.wait_idle()
        # What it computed before the poison is clean, and goes on as if nothing had been.
        turn_2 = [*prompt, *delivered[:-1]]
        (continued,) = solo.generate([turn_2], [GREEDY], 16)
        assert balancer.generate(p0, d0, turn_2, GREEDY) == continued
        outcome = balancer.dispatch(p0, d0, [*prompt, *delivered, 5, 6, 7, 8], GREEDY)
        assert numerical(outcome)
        cluster.wait_idle()

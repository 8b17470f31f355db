"""Two engines that answer as one: every field of every token, against the engine that does both phases."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bootstrap.messages import FailureReason, TokenLogprobs
from bootstrap.sampling import FinishReason, GrammarKind, GrammarSpec, SamplingParams
from engine.grammar_compiler import GrammarCompiler
from engine.loader import load_model
from engine.solo import SoloEngine
from engine.step import SampledToken
from tests.support.engine_cluster import EngineCluster
from tests.support.raw_balancer import Outcome, RawBalancer
from tests.support.tiny_model import EOS_TOKEN_ID, make_tiny_model
from tests.support.waiting import wait_for

BLOCK = 4
CHUNK = 7
LENGTHS = (
    1,
    BLOCK - 1,
    BLOCK,
    BLOCK + 1,
    CHUNK,
    CHUNK + 1,
    2 * BLOCK,
    2 * CHUNK,
    2 * CHUNK + 1,
    37,
)
GRAMMAR = GrammarSpec(GrammarKind.REGEX, r"\{[a-z]{1,12}: [0-9]{1,6}(, [a-z]{1,4}: [0-9]+)*\}")
WISHES: Mapping[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.2, "top_p": 0.9},
    "min_p": {"temperature": 2.0, "min_p": 0.02, "top_k": 30},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.8},
    "counts": {"temperature": 0.7, "frequency_penalty": 1.5, "presence_penalty": 0.8},
    "repeats": {"temperature": 0.0, "frequency_penalty": -1.0, "repetition_penalty": 0.7},
    "bias": {"temperature": 1.0, "logit_bias": ((50, 8.0), (51, 8.0), (3, -100.0))},
    "grammar": {"temperature": 1.0, "grammar": GRAMMAR, "stop_token_ids": (EOS_TOKEN_ID,)},
    "everything": {
        "temperature": 1.5,
        "top_p": 0.98,
        "min_p": 0.001,
        "grammar": GRAMMAR,
        "stop_token_ids": (EOS_TOKEN_ID,),
        "presence_penalty": 1.0,
        "repetition_penalty": 1.1,
        "logit_bias": ((60, 3.0),),
        "min_tokens": 9,
    },
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def solo(model_dir: Path) -> Iterator[SoloEngine]:
    grammars = GrammarCompiler(model_dir)
    yield SoloEngine(load_model(model_dir, "float64", "cpu"), BLOCK, grammars)
    grammars.close()


@pytest.fixture(scope="module")
def cluster(model_dir: Path) -> Iterator[EngineCluster]:
    with EngineCluster(model_dir, max_num_batched_tokens=CHUNK) as cluster:
        yield cluster


@pytest.fixture
def balancer() -> Iterator[RawBalancer]:
    with RawBalancer() as balancer:
        yield balancer


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    return random.Random(f"{num_tokens}/{seed}").choices(range(3, 300), k=num_tokens)


def wish(name: str, seed: int = 0, max_tokens: int = 14) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=max_tokens, num_logprobs=3, **WISHES[name])


def expected_of(
    solo: SoloEngine, prompt: list[int], sampling: SamplingParams
) -> tuple[list[SampledToken], FinishReason | None]:
    (tokens,) = solo.generate_tokens([prompt], [sampling], 16, num_prompt_logprobs=2)
    return tokens, tokens[-1].finish_at(sampling, len(tokens) - 1)


def ended(outcome: Outcome) -> Outcome:
    wait_for(lambda: outcome.finish or outcome.failures, 60.0, "an answer")
    assert not outcome.failures
    return outcome


def assert_equal(ours: TokenLogprobs, theirs: TokenLogprobs) -> None:
    assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    assert [token_id for token_id, _ in ours.top] == [token_id for token_id, _ in theirs.top]
    for (_, mine), (_, other) in zip(ours.top, theirs.top, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


def assert_tokens(outcome: Outcome, tokens: list[SampledToken], first: int = 0) -> None:
    assert outcome.output == [token.token_id for token in tokens[first:]]
    for position, token in enumerate(tokens[first:], first):
        assert len(token.top) == 3
        assert_equal(outcome.logprobs[position], TokenLogprobs(token.logprob, token.top))


@pytest.mark.parametrize("name", WISHES)
def test_every_field_at_every_block_and_chunk_edge(
    cluster: EngineCluster, solo: SoloEngine, balancer: RawBalancer, name: str
) -> None:
    p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
    for seed, length in enumerate(LENGTHS):
        prompt, sampling = prompt_of(length), wish(name, seed)
        tokens, finish = expected_of(solo, prompt, sampling)
        for num_prompt_logprobs in (2, None):
            outcome = ended(
                balancer.dispatch(p0, d0, prompt, sampling, num_prompt_logprobs=num_prompt_logprobs)
            )
            assert_tokens(outcome, tokens)
            assert outcome.finish is finish
            if num_prompt_logprobs is None or length == 1:
                assert outcome.prompt_logprobs == []
                continue
            (scored,) = outcome.prompt_logprobs
            assert len(scored) == length - 1
            for ours, theirs in zip(scored, tokens[0].prompt_logprobs, strict=True):
                assert_equal(ours, theirs)
            assert outcome.stats["p0"].num_cached_tokens == 0
    cluster.wait_idle()


@pytest.mark.parametrize("name", WISHES)
def test_every_field_of_an_attempt_that_continues_at_each_position(
    cluster: EngineCluster, solo: SoloEngine, balancer: RawBalancer, name: str
) -> None:
    p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
    prompt, sampling = prompt_of(6, seed=2), wish(name, seed=77)
    tokens, finish = expected_of(solo, prompt, sampling)
    assert len(tokens) > 5
    for delivered in range(1, len(tokens)):
        so_far = [token.token_id for token in tokens[:delivered]]
        outcome = ended(
            balancer.dispatch(p0, d0, [*prompt, *so_far], sampling, output_offset=delivered)
        )
        assert_tokens(outcome, tokens, delivered)
        assert outcome.finish is finish
    cluster.wait_idle()


def test_log_probabilities_come_only_when_asked_for(
    cluster: EngineCluster, balancer: RawBalancer
) -> None:
    p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
    sampling = SamplingParams(seed=0, max_tokens=5, temperature=0.0)
    outcome = ended(balancer.dispatch(p0, d0, prompt_of(9), sampling))
    assert not outcome.logprobs
    assert not outcome.prompt_logprobs


def test_many_with_different_wishes_in_one_batch(
    cluster: EngineCluster, solo: SoloEngine, balancer: RawBalancer
) -> None:
    p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
    asked = [(prompt_of(5 + i, i), wish(name, i)) for i, name in enumerate([*WISHES, *WISHES])]
    outcomes = [balancer.dispatch(p0, d0, *each) for each in asked]
    for outcome, (prompt, sampling) in zip(outcomes, asked, strict=True):
        tokens, finish = expected_of(solo, prompt, sampling)
        assert_tokens(ended(outcome), tokens)
        assert outcome.finish is finish
    cluster.wait_idle()


def test_a_grammar_that_is_complete_with_token_0_needs_no_decode(
    cluster: EngineCluster, balancer: RawBalancer
) -> None:
    p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
    grammar = GrammarSpec(GrammarKind.CHOICE, '["a", "b"]')
    sampling = SamplingParams(seed=0, max_tokens=9, temperature=0.0, grammar=grammar)
    outcome = ended(balancer.dispatch(p0, d0, prompt_of(9), sampling))
    assert outcome.finish is FinishReason.STOP
    assert len(outcome.output) == 1
    cluster.wait_idle()
    assert "d0" not in outcome.stats


@pytest.mark.parametrize(
    "grammar",
    [
        GrammarSpec(GrammarKind.REGEX, "(unclosed"),
        GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "nothing"}'),
        GrammarSpec(GrammarKind.CHOICE, "[]"),
    ],
)
def test_a_bad_grammar_fails_its_request_alone(
    cluster: EngineCluster, balancer: RawBalancer, grammar: GrammarSpec
) -> None:
    p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
    plain = SamplingParams(seed=0, max_tokens=8, temperature=0.0)
    bound = SamplingParams(seed=0, max_tokens=8, temperature=0.0, grammar=grammar)
    good, bad = (balancer.dispatch(p0, d0, prompt_of(9), s) for s in (plain, bound))
    reasons = lambda: {failure.reason for failure in list(bad.failures.values())}  # noqa: E731
    # The leg that was told may be heard before the one that refused.
    wait_for(lambda: FailureReason.BAD_REQUEST in reasons(), 60.0, "a refusal")
    assert reasons() <= {FailureReason.BAD_REQUEST, FailureReason.PEER_ABORTED}
    assert len(ended(good).output) == 8
    cluster.wait_idle()


def test_the_last_token_tells_what_the_transfer_took(
    cluster: EngineCluster, balancer: RawBalancer
) -> None:
    p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
    sampling = SamplingParams(seed=0, max_tokens=5, temperature=0.0)
    outcome = ended(balancer.dispatch(p0, d0, prompt_of(30, seed=9), sampling))
    stats = outcome.stats["d0"]
    block_bytes = 2 * 2 * 3 * BLOCK * 16 * 8  # heads, keys and values, layers, tokens, width, bytes
    assert stats.transfer_bytes == 8 * block_bytes
    assert stats.transfer_s > 0
    assert stats.max_gap_s > 0

"""Bias, penalties, min_p and alternatives, against their definitions worked out token by token."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.sampling import SamplingParams
from engine.sampler import sample
from engine.step import SampleAt, SampledToken, SampleMemory

VOCAB = 60


def row(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def at(prompt: list[int], output: list[int], **params: object) -> SampleAt:
    values = {"seed": 1, "max_tokens": 1000, "temperature": 0.0, **params}
    return SampleAt(SamplingParams(**values), len(output), [*prompt, *output])


def one(logits: torch.Tensor, wanted: SampleAt) -> SampledToken:
    (outcome,) = sample(logits[None], [wanted])
    assert isinstance(outcome, SampledToken)
    return outcome


def by_definition(logits: torch.Tensor, wanted: SampleAt) -> list[float]:
    """vLLM's: bias; repetition over prompt and output; frequency and presence over output."""
    params, values = wanted.params, [float(x) for x in logits]
    for token_id, bias in params.logit_bias:
        values[token_id] += bias
    for token_id in {*wanted.prompt_token_ids, *wanted.output_token_ids}:
        penalty = params.repetition_penalty
        values[token_id] *= 1 / penalty if values[token_id] > 0 else penalty
    for token_id, count in Counter(wanted.output_token_ids).items():
        values[token_id] -= params.frequency_penalty * count + params.presence_penalty
    return values


ids = st.lists(st.integers(0, VOCAB - 1), max_size=20)


@given(
    ids.filter(bool),
    ids,
    st.fixed_dictionaries(
        {
            "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3, 5.0]),
            "frequency_penalty": st.sampled_from([-2.0, 0.0, 0.7, 2.0]),
            "presence_penalty": st.sampled_from([-2.0, 0.0, 1.1]),
            "logit_bias": st.sampled_from([(), ((3, 4.0), (7, -100.0)), ((0, 100.0),)]),
        }
    ),
    st.integers(0, 50),
)
@settings(max_examples=120, deadline=None)
def test_the_greedy_token_is_the_best_by_definition(prompt, output, params, seed) -> None:
    wanted = at(prompt, output, **params)
    values = by_definition(row(seed), wanted)
    assert values[one(row(seed), wanted).token_id] == pytest.approx(max(values), abs=1e-4)


@pytest.mark.parametrize("params", [{"repetition_penalty": 1.4}, {"frequency_penalty": 0.9}])
def test_a_memory_that_grows_with_the_output_is_the_same_as_a_new_one(params) -> None:
    prompt, output, memory = [1, 2, 3], [], SampleMemory()
    for step in range(40):
        wanted = at(prompt, output, **params)
        kept = SampleAt(wanted.params, wanted.position, wanted.token_ids, memory)
        token = one(row(step % 3), kept)
        assert token == one(row(step % 3), wanted)
        output.append(token.token_id)
    assert len(set(output)) > 5, "a penalty leaves no loop"


def test_an_attempt_that_continues_sees_the_same_counts() -> None:
    params = {"presence_penalty": 2.0, "repetition_penalty": 1.2}
    whole = at([1, 2], [5, 6, 5], **params)
    continued = SampleAt(whole.params, 3, (1, 2, 5, 6, 5), SampleMemory())
    assert one(row(4), whole) == one(row(4), continued)


def test_output_tokens_are_no_prompt_tokens() -> None:
    logits = torch.zeros(VOCAB)
    logits[9] = 1.0
    assert one(logits, at([9], [], presence_penalty=2.0)).token_id == 9
    assert one(logits, at([9], [9], presence_penalty=2.0)).token_id == 0


def test_ids_beyond_the_vocabulary_have_no_effect() -> None:
    plain = one(row(1), at([1], []))
    assert one(row(1), at([1], [], logit_bias=((VOCAB + 5, 100.0),))) == plain


def test_logprobs_are_the_models_own_whatever_else_is_asked() -> None:
    logits, expected = row(5), row(5).double().log_softmax(-1)
    ranked = expected.argsort(descending=True, stable=True).tolist()
    for params in (
        {},
        {"logit_bias": ((11, 100.0),)},
        {"temperature": 2.0, "min_p": 0.2, "top_k": 5},
        {"repetition_penalty": 3.0, "frequency_penalty": 2.0},
    ):
        token = one(logits, at([1, ranked[0]], [ranked[0]], num_logprobs=4, **params))
        assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-5)
        assert [token_id for token_id, _ in token.top] == ranked[:4]
        for token_id, logprob in token.top:
            assert logprob == pytest.approx(float(expected[token_id]), abs=1e-5)


def test_alternatives_only_where_asked_for_and_never_more_than_there_are() -> None:
    assert one(row(5), at([1], [])).top == ()
    assert one(row(5), at([1], [], num_logprobs=0)).top == ()
    few = torch.tensor([0.0, 1.0, 1.0])
    assert [i for i, _ in one(few, at([1], [], num_logprobs=20)).top] == [1, 2, 0]


@pytest.mark.parametrize("min_p", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("others", [{}, {"top_k": 3}, {"top_p": 0.7}, {"temperature": 3.0}])
def test_min_p_keeps_what_is_probable_enough_beside_the_best(min_p, others) -> None:
    logits = row(8)
    temperature = others.get("temperature", 1.0)
    scaled = logits.double() / temperature
    kept = [i for i in range(VOCAB) if scaled[i] - scaled.max() >= math.log(min_p)]
    kept = sorted(kept, key=lambda i: -float(scaled[i]))[: others.get("top_k") or None]
    if "top_p" in others:
        masses = torch.tensor([float(scaled[i]) for i in kept], dtype=torch.double).softmax(0)
        kept = kept[: int((masses.cumsum(0) < others["top_p"]).sum()) + 1]
    drawn = set()
    for position in range(400):
        params = {"temperature": 1.0, "min_p": min_p, **others}
        wanted = SampleAt(SamplingParams(seed=3, max_tokens=1000, **params), position, ())
        drawn.add(one(logits, wanted).token_id)
    assert drawn <= set(kept)
    assert len(kept) > 6 or drawn == set(kept)


def test_what_is_cut_off_is_never_drawn_however_the_draw_falls() -> None:
    logits = torch.zeros(VOCAB)
    stops = tuple(range(1, VOCAB))
    for position in range(50):
        params = {"temperature": 5.0, "stop_token_ids": stops, "min_tokens": 100}
        wanted = SampleAt(SamplingParams(seed=3, max_tokens=1000, **params), position, ())
        assert one(logits, wanted).token_id == 0


def test_penalties_of_one_row_leave_the_others_and_the_logits_alone() -> None:
    logits = torch.stack([row(1), row(2)])
    before = logits.clone()
    harsh = at([1], [2, 2], repetition_penalty=9.0, logit_bias=((5, 50.0),))
    outcomes = sample(logits, [harsh, at([1], [])])
    assert torch.equal(logits, before)
    assert outcomes[1] == one(row(2), at([1], []))


@pytest.mark.parametrize("penalty", [1e-300, 100.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_extreme_penalties_still_give_a_token(penalty, temperature) -> None:
    logits = torch.linspace(-1e38, 1e38, VOCAB)
    seen = list(range(VOCAB))
    token = one(logits, at(seen, [], repetition_penalty=penalty, temperature=temperature))
    assert logits[token.token_id] > 0

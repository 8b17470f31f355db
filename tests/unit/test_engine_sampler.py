"""Sampling: a function of one row, the request's seed and the position, and of nothing else."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.sampling import SamplingParams
from engine.sampler import sample, uniform
from engine.step import NumericalFault, SampleAt, SampledToken

VOCAB = 300


def row(seed, size=VOCAB, scale=3.0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def at(position=0, **params):
    return SampleAt(SamplingParams(**{"seed": 1, "max_tokens": 1000, **params}), position)


def one(logits, wanted):
    (outcome,) = sample(logits[None], [wanted])
    assert isinstance(outcome, SampledToken)
    return outcome


def ranked(logits):
    """Token ids from most to least probable, ties by id."""
    return sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))


def nucleus(logits, temperature, top_k, top_p):
    """The ids that the filters leave, by the definition."""
    ids = ranked(logits)[: top_k or None]
    top = max(float(logits[i]) for i in ids)
    weights = [math.exp((float(logits[i]) - top) / temperature) for i in ids]
    if not top_k:
        total = math.fsum(math.exp((float(x) - top) / temperature) for x in logits)
    else:
        total = math.fsum(weights)
    kept, mass = [], 0.0
    for i, weight in zip(ids, weights, strict=True):
        kept.append(i)
        mass += weight
        if top_p < 1 and mass >= top_p * total:
            break
    return kept


params = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.2, 5.0),
        "top_k": st.sampled_from([0, 1, 2, 5, 64, 65, 299, 300, 1000]),
        "top_p": st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
        "seed": st.integers(0, 2**63 - 1),
    }
)


@given(params, st.integers(0, 50), st.integers(0, 2**20))
@settings(max_examples=150, deadline=None)
def test_tokens_come_from_the_filtered_set(options, row_seed, position):
    logits = row(row_seed)
    token = one(logits, at(position, **options))
    # One more id than the definition keeps, for a sum that lands on the very edge.
    edge = nucleus(
        logits, options["temperature"], options["top_k"], min(1.0, options["top_p"] + 1e-9)
    )
    assert token.token_id in edge


@given(params, st.integers(0, 50), st.integers(0, 2**20), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_neighbours_in_the_batch_do_not_matter(options, row_seed, position, place):
    logits, wanted = row(row_seed), at(position, **options)
    others = [row(1000 + i) for i in range(3)]
    batch = torch.stack([*others[:place], logits, *others[place:]])
    asked = [at(3, temperature=0.0), at(4, temperature=0.7), at(5, top_k=3)]
    outcomes = sample(batch, [*asked[:place], wanted, *asked[place:]])
    assert outcomes[place] == one(logits, wanted)


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}, {"temperature": 0.5}])
def test_frequencies_follow_the_distribution(options):
    logits = row(3, size=12, scale=1.5)
    temperature = options.get("temperature", 1.0)
    kept = nucleus(logits, temperature, options.get("top_k", 0), options.get("top_p", 1.0))
    weights = {i: math.exp(float(logits[i]) / temperature) for i in kept}
    num_draws = 4000
    counts = Counter(one(logits, at(p, **options)).token_id for p in range(num_draws))
    assert set(counts) <= set(kept)
    for i, weight in weights.items():
        expected = num_draws * weight / sum(weights.values())
        assert abs(counts[i] - expected) < 5 * math.sqrt(expected) + 1


def test_a_flat_distribution_reaches_its_whole_length():
    """Candidates beyond the first few are found, and ties fall in order of token id."""
    logits = torch.zeros(5000)
    for position in range(40):
        token = one(logits, at(position))
        assert token.token_id == int(uniform(1, position) * 5000)
        assert token.logprob == pytest.approx(-math.log(5000), abs=1e-4)


def test_ties_break_by_token_id():
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0, 2.0])
    assert one(logits, at(temperature=0.0)).token_id == 1
    drawn = {one(logits, at(p, top_k=2)).token_id for p in range(60)}
    assert drawn == {1, 3}


def test_greedy_is_the_limit_of_low_temperature():
    logits = row(9)
    greedy = one(logits, at(temperature=0.0))
    assert (
        one(logits, at(temperature=1e-300)) == greedy == one(logits, at(top_k=1, temperature=9.0))
    )


def test_logprobs_are_of_the_unfiltered_distribution():
    logits = row(5)
    expected = logits.double().log_softmax(-1)
    for options in ({"temperature": 0.0}, {"temperature": 4.0, "top_k": 3}, {"top_p": 0.2}):
        token = one(logits, at(**options))
        assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_ids_are_banned_before_min_tokens(temperature):
    logits = row(2)
    stops = (*ranked(logits)[:3], VOCAB + 7)  # an id that the model does not have
    options = {"temperature": temperature, "stop_token_ids": stops, "min_tokens": 4}
    assert all(one(logits, at(p, **options)).token_id not in stops for p in range(4))
    assert one(logits, at(4, **{**options, "temperature": 0.0})).token_id == stops[0]


def test_banning_everything_is_a_fault_of_that_row():
    logits = torch.zeros(2, 3)
    outcomes = sample(logits, [at(stop_token_ids=(0, 1, 2), min_tokens=9), at(temperature=0.0)])
    assert isinstance(outcomes[0], NumericalFault)
    assert isinstance(outcomes[1], SampledToken)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad, temperature):
    logits = torch.stack([row(1), row(2), row(3)])
    healthy = sample(logits, [at(temperature=temperature)] * 3)
    logits[1, 17] = bad
    outcomes = sample(logits, [at(temperature=temperature)] * 3)
    assert isinstance(outcomes[1], NumericalFault)
    assert [outcomes[0], outcomes[2]] == [healthy[0], healthy[2]]


def test_uniform_is_pinned_and_spread():
    """The numbers are part of the wire's meaning: two versions that pair must draw alike."""
    assert uniform(0, 0) == 0.6916743561463189
    assert uniform(2**63 - 1, 2**20) == 0.43564352896880854
    draws = [uniform(5, p) for p in range(2000)]
    assert all(0 <= u < 1 for u in draws)
    assert abs(sum(draws) / 2000 - 0.5) < 0.03
    assert len(set(draws)) == 2000


def test_no_rows_no_outcomes():
    assert sample(torch.empty(0, VOCAB), []) == []

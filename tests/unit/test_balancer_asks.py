"""What a client asks becomes requests that some pair can serve, or is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.fields import MAX_PROMPT_LOGPROBS
from bootstrap.identity import Role
from bootstrap.sampling import SamplingParams
from cluster.balancer.asks import Ask, AskRefused, requests_for, sample_seed
from cluster.balancer.policy import Pool
from tests.support.members import CONTRACT, LIMITS, worker_info


def pool(**decode_limits) -> Pool:
    limits = msgspec.structs.replace(LIMITS, **decode_limits)
    decode = worker_info("d", Role.DECODE, limits=limits)
    return Pool(CONTRACT, (worker_info("p", Role.PREFILL),), (decode,))


POOLS = [pool(max_model_len=100)]


def ask(*lengths, **fields) -> Ask:
    prompts = tuple(tuple(range(length)) for length in lengths)
    sampling = SamplingParams(seed=5, max_tokens=1, min_tokens=fields.pop("min_tokens", 0))
    return Ask(**{"request_id": "r", "prompts": prompts, "sampling": sampling, **fields})


def test_choices_are_numbered_prompt_by_prompt():
    specs = requests_for(ask(3, 4, n=2, max_tokens=5), POOLS, (9,))
    assert [s.request_id for s in specs] == ["r/0", "r/1", "r/2", "r/3"]
    assert [len(s.prompt_token_ids) for s in specs] == [3, 3, 4, 4]
    seeds = [s.sampling.seed for s in specs]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] == 5 != seeds[1]
    assert all(s.bootstrap_stop_ids == (9,) for s in specs)
    (only,) = requests_for(ask(3), POOLS, ())
    assert only.request_id == "r"


def test_without_a_limit_the_output_takes_what_fits():
    (spec,) = requests_for(ask(30), POOLS, ())
    assert spec.sampling.max_tokens == 70
    (spec,) = requests_for(ask(30, default_max_tokens=16), POOLS, ())
    assert spec.sampling.max_tokens == 16
    (spec,) = requests_for(ask(95, default_max_tokens=16), POOLS, ())
    assert spec.sampling.max_tokens == 5


@pytest.mark.parametrize(
    ("length", "fields"), [(100, {}), (90, {"max_tokens": 11}), (101, {"max_tokens": 1})]
)
def test_what_no_pair_holds_is_refused_with_the_numbers(length, fields):
    with pytest.raises(AskRefused, match=f"length is 100 tokens.*{length} in") as caught:
        requests_for(ask(3, length, **fields), POOLS, ())
    assert caught.value.code == "context_length_exceeded"


def test_the_edge_itself_is_taken():
    (spec,) = requests_for(ask(90, max_tokens=10), POOLS, ())
    assert spec.sampling.max_tokens == 10


def test_the_pages_of_the_decode_pool_count():
    with pytest.raises(AskRefused):
        requests_for(ask(20, max_tokens=13), [pool(num_blocks=2)], ())
    (spec,) = requests_for(ask(20, max_tokens=13), [pool(num_blocks=2), *POOLS], ())
    assert spec.sampling.max_tokens == 13


def test_more_min_tokens_than_max_tokens():
    with pytest.raises(AskRefused) as caught:
        requests_for(ask(3, max_tokens=4, min_tokens=5), POOLS, ())
    assert caught.value.param == "min_tokens"


def test_no_tokens_at_all_cost_one():
    (spec,) = requests_for(ask(30, max_tokens=0), POOLS, ())
    assert spec.sampling.max_tokens == 1
    with pytest.raises(AskRefused):
        requests_for(ask(100, max_tokens=0), POOLS, ())


def test_scores_of_a_prompt_are_bounded():
    limits = msgspec.structs.replace(LIMITS, max_model_len=1 << 20, num_blocks=1 << 20)
    workers = [worker_info(r.value, r, limits=limits) for r in (Role.PREFILL, Role.DECODE)]
    wide = Pool(CONTRACT, (workers[0],), (workers[1],))
    most = MAX_PROMPT_LOGPROBS // 21
    (spec,) = requests_for(ask(most, num_prompt_logprobs=20), [wide], ())
    assert spec.num_prompt_logprobs == 20
    with pytest.raises(AskRefused, match=f"prompts of {most} tokens"):
        requests_for(ask(most + 1, num_prompt_logprobs=20), [wide], ())
    requests_for(ask(most + 1, num_prompt_logprobs=1), [wide], ())


@given(st.integers(-(2**63), 2**63 - 1))
def test_seeds_are_in_range_and_differ_between_samples(seed):
    seeds = [sample_seed(seed, sample) for sample in range(8)]
    assert len(set(seeds)) == 8
    assert all(0 <= s < 2**63 for s in seeds)
    assert seeds[0] == seed & (2**63 - 1)

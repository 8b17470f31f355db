"""`/v1/responses` over HTTP and two engines, asked by the official client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from bootstrap.identity import Role
from engine.tokenizer import Tokenizer
from tests.support.balancer_cluster import Cluster
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.scripted_model import Script
from tests.support.split_tokens import byte_ids
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def balancer(folder: Path, script: Script) -> Iterator[HttpBalancer]:
    with (
        EngineCluster(folder, script=script, num_blocks=1024) as engines,
        HttpBalancer(engines.bootstrap, folder, MODEL_NAME, reasoning_parser="qwen3") as made,
    ):
        made.wait_ready()
        yield made
        engines.wait_idle()


@pytest.fixture(scope="module")
def client(balancer: HttpBalancer) -> Iterator[openai.OpenAI]:
    with balancer.client() as made:
        yield made


def tell(script: Script, tokenizer: Tokenizer, text: str) -> None:
    script.otherwise = tuple(byte_ids(tokenizer, text))


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL_NAME, "input": "x", **fields})


def without_ids(response: Any) -> dict[str, Any]:
    fields = response.model_dump()
    for name in ("id", "created_at"):
        del fields[name]
    for item in fields["output"]:
        del item["id"]
        item.pop("call_id", None)
    fields["usage"].pop("input_tokens_details")
    return fields


def both(client: openai.OpenAI, **fields: Any) -> Any:
    """The answer, the same streamed and whole; the deltas add up to it."""
    whole = ask(client, **fields)
    events = list(ask(client, **fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1].response
    assert without_ids(last) == without_ids(whole)
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert said == last.output_text == whole.output_text
    kind = "response.function_call_arguments.delta"
    for index, item in enumerate(last.output):
        if item.type == "function_call":
            parts = [e.delta for e in events if e.type == kind and e.output_index == index]
            assert "".join(parts) == item.arguments
    return whole


def test_a_text(client, script, tokenizer) -> None:
    tell(script, tokenizer, "née 日本")
    answer = both(client, instructions="Be brief.", metadata={"k": "v"}, temperature=0.5)
    assert answer.output_text == "née 日本"
    assert (answer.status, answer.store, answer.metadata) == ("completed", False, {"k": "v"})
    assert answer.usage.output_tokens == len("née 日本".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_text_that_is_cut_off(client, script, tokenizer) -> None:
    tell(script, tokenizer, "abcdef")
    answer = both(client, max_output_tokens=3)
    assert (answer.output_text, answer.status) == ("abc", "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_thoughts_text_calls_and_back(client, script, tokenizer) -> None:
    tell(script, tokenizer, f"<think>Hm.</think>Well.\n{CALL}")
    answer = both(client, tools=[TOOL])
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    call = answer.output[2]
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    turns = [{"role": "user", "content": "x"}, *answer.output, result]
    tell(script, tokenizer, "So 42.")
    assert both(client, tools=[TOOL], input=turns).output_text == "So 42."
    with pytest.raises(openai.BadRequestError, match="tool_call_id"):
        ask(client, input=[result])


def test_the_bytes_of_a_stream(balancer, script, tokenizer) -> None:
    tell(script, tokenizer, "ab")
    body = {"model": MODEL_NAME, "input": "x", "stream": True}
    text = httpx.post(f"{balancer.url}/v1/responses", json=body, timeout=60).text
    events = text.removesuffix("\n\n").split("\n\n")
    for event in events:
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert events[-1].startswith("event: response.completed\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
        ({"input": []}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "s",
                        "strict": True,
                        "schema": {"type": "array", "uniqueItems": True},
                    }
                }
            },
            "text",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(fields, param, stream, client) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields, stream=stream)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_a_model_that_is_not_served(client) -> None:
    with pytest.raises(openai.NotFoundError):
        ask(client, model="other")


def test_a_stream_that_breaks_off_says_so(tokenizer) -> None:
    cluster = Cluster(tokenizer, tuple(byte_ids(tokenizer, "abcdefgh")), max_attempts=1)
    try:
        cluster.add(Role.PREFILL)
        decode = cluster.add(Role.DECODE)
        decode.limit = 3
        cluster.wait_ready()
        stream = cluster.openai.responses.create(
            model="tiny", input="x", stream=True, extra_headers={"X-Request-Id": "broken"}
        )
        seen = [next(stream) for _ in range(5)]
        wait_for(lambda: decode.of("broken"), what="its dispatch")
        decode.leave()
        with pytest.raises(openai.APIError) as caught:
            seen += list(stream)
        assert caught.value.code == "no_workers"
        assert all(e.type != "response.completed" for e in seen)
    finally:
        cluster.close()


def test_what_must_be_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A random model calls what it must, and keeps to a format."""
    folder = make_tiny_model(tmp_path_factory.mktemp("free"))
    with (
        EngineCluster(folder, num_blocks=1024) as engines,
        HttpBalancer(engines.bootstrap, folder, MODEL_NAME) as balancer,
        balancer.client() as client,
    ):
        balancer.wait_ready()
        fields: dict[str, Any] = {"tools": [TOOL], "parallel_tool_calls": False}
        fields["temperature"] = 0
        answer = both(client, tool_choice={"type": "function", "name": "f"}, **fields)
        assert json.loads(answer.output[0].arguments)["a"] in (1, 2)
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        wanted = {"type": "json_schema", "name": "s", "strict": True, "schema": schema}
        answer = both(client, text={"format": wanted}, temperature=0)
        assert json.loads(answer.output_text) == {}
        engines.wait_idle()

"""The demo model, which is real and small, keeps to what a request demands of its answer."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.model_source import resolve_model
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    folder = resolve_model("demo")
    with (
        EngineCluster(folder, block_size=16, num_blocks=128) as engines,
        HttpBalancer(engines.bootstrap, folder, MODEL_NAME) as balancer,
        balancer.client() as made,
    ):
        balancer.wait_ready()
        yield made
        engines.wait_idle()


def said(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    body = {
        "model": MODEL_NAME,
        "messages": messages,
        "temperature": 0,
        "max_tokens": 120,
        **fields,
    }
    (choice,) = client.chat.completions.create(**body).choices
    return choice


def test_json_of_a_schema(client) -> None:
    schema = {"name": "person", "strict": True, "schema": PERSON}
    choice = said(
        client,
        "Describe Alice, who is 30 and has a cat, as JSON.",
        response_format={"type": "json_schema", "json_schema": schema},
    )
    assert choice.finish_reason == "stop"
    person = json.loads(choice.message.content)
    assert person.keys() == PERSON["properties"].keys()
    assert isinstance(person["name"], str)
    assert person["age"] in range(151)
    assert set(person["pets"]) <= {"cat", "dog"}


def test_a_call_that_is_demanded(client) -> None:
    choice = said(
        client,
        "What is the weather in Paris?",
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert "Paris" in json.loads(call.function.arguments)["city"]


def test_one_of_a_few_words(client) -> None:
    fields = {"guided_choice": ["Berlin", "Paris", "Rome"]}
    choice = said(client, "What is the capital of France?", extra_body=fields)
    assert choice.message.content in fields["guided_choice"]
    assert choice.finish_reason == "stop"

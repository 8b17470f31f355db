"""Tools, thoughts and formats over HTTP and two engines, asked by the official client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.tokenizer import Tokenizer
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.scripted_model import Script
from tests.support.split_tokens import add_tokens, byte_ids
from tests.support.tiny_model import make_tiny_model

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
LLAMA_CALL = '{"name": "f", "parameters": {"a": "é"}}'
THOUGHT = "<think>\nHm.\n</think>\n\nYes."
CUTS = (1, 6, 10, 11, 12, 15, 22, 25, 30, 38, 43, 45, 49)
FIRST = [CALL[:cut] for cut in CUTS] + [THOUGHT[:cut] for cut in (3, 7, 8, 12, 15, 22, 24)]
FIRST += [LLAMA_CALL[:cut] for cut in (1, 5, 12, 25)]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
MESSAGES = [{"role": "user", "content": "x"}]
BIG = {"num_blocks": 1024}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=340)


@pytest.fixture(scope="module")
def first_ids(folder: Path) -> dict[str, int]:
    return add_tokens(folder, FIRST)


@pytest.fixture(scope="module")
def tokenizer(folder: Path, first_ids: dict[str, int]) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def engines(folder: Path, tokenizer: Tokenizer, script: Script) -> Iterator[EngineCluster]:
    with EngineCluster(folder, script=script, **BIG) as cluster:
        yield cluster
        cluster.wait_idle()


def serve(engines: EngineCluster, folder: Path, **settings: Any) -> HttpBalancer:
    return HttpBalancer(engines.bootstrap, folder, MODEL_NAME, **settings)


@pytest.fixture(scope="module")
def client(engines: EngineCluster, folder: Path) -> Iterator[openai.OpenAI]:
    with serve(engines, folder, reasoning_parser="qwen3") as balancer:
        balancer.wait_ready()
        with balancer.client() as made:
            yield made


@pytest.fixture(scope="module")
def llama(engines: EngineCluster, folder: Path) -> Iterator[openai.OpenAI]:
    with serve(engines, folder, tool_call_parser="llama3_json") as balancer:
        balancer.wait_ready()
        with balancer.client() as made:
            yield made


class Said:
    """What an answer says, streamed or not, and the pieces it came in."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[list[str]] = []
        self.ids: list[str] = []
        self.finish: str | None = None

    @property
    def parts(self) -> tuple[str, str, list[list[str]], str | None]:
        return self.reasoning, self.content, self.calls, self.finish


def whole(client: openai.OpenAI, **fields: Any) -> Said:
    body = {"model": MODEL_NAME, "messages": MESSAGES, "max_tokens": 200, **fields}
    (choice,) = client.chat.completions.create(**body).choices
    message, said = choice.message, Said()
    said.finish = choice.finish_reason
    said.content = message.content or ""
    said.reasoning = getattr(message, "reasoning_content", None) or ""
    said.calls = [[c.function.name, c.function.arguments] for c in message.tool_calls or ()]
    said.ids = [c.id for c in message.tool_calls or ()]
    if said.calls:
        assert message.content is None or message.content
    return said


def streamed(client: openai.OpenAI, **fields: Any) -> Said:
    body = {"model": MODEL_NAME, "messages": MESSAGES, "max_tokens": 200, **fields}
    said = Said()
    for number, chunk in enumerate(client.chat.completions.create(**body, stream=True)):
        (choice,) = chunk.choices
        delta = choice.delta.model_dump(exclude_unset=True)
        assert said.finish is None
        said.finish = choice.finish_reason
        assert (delta.pop("role", None) == "assistant") == (number == 0)
        assert number == 0 or delta or said.finish, "an empty chunk"
        said.content += delta.get("content") or ""
        said.reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                assert call["index"] == len(said.calls)
                assert (call["type"], call["function"]["arguments"]) == ("function", "")
                said.ids.append(call["id"])
                said.calls.append([call["function"]["name"], ""])
            else:
                assert call["function"].keys() == {"arguments"}
                said.calls[call["index"]][1] += call["function"]["arguments"]
    return said


def both(client: openai.OpenAI, **fields: Any) -> Said:
    once, again = whole(client, **fields), streamed(client, **fields)
    assert once.parts == again.parts
    assert len(set(once.ids + again.ids)) == 2 * len(once.ids)
    return once


def tell(script: Script, tokenizer: Tokenizer, first: int | None, rest: str) -> None:
    head = [] if first is None else [first]
    script.otherwise = (*head, *byte_ids(tokenizer, rest))


@pytest.mark.parametrize("cut", CUTS)
def test_a_call_across_the_seam(cut, client, script, tokenizer, first_ids) -> None:
    tell(script, tokenizer, first_ids[CALL[:cut]], CALL[cut:])
    said = both(client, tools=[TOOL])
    assert said.parts == ("", "", [["f", '{"a": "é"}']], "tool_calls")


@pytest.mark.parametrize("cut", [1, 6, 11])
def test_what_only_looks_like_a_call(cut, client, script, tokenizer, first_ids) -> None:
    text = CALL[:cut] + "no, <tool_call> is no call"
    tell(script, tokenizer, first_ids[CALL[:cut]], text[cut:])
    assert both(client, tools=[TOOL]).parts == ("", text, [], "stop")


def test_text_and_several_calls(client, script, tokenizer) -> None:
    tell(script, tokenizer, None, f"Well.\n{CALL}\n{CALL}")
    said = both(client, tools=[TOOL])
    assert said.parts == ("", "Well.", [["f", '{"a": "é"}']] * 2, "tool_calls")
    said = both(client, tools=[TOOL], parallel_tool_calls=False)
    assert said.parts == ("", "Well.", [["f", '{"a": "é"}']], "tool_calls")
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        assert both(client, **fields).parts == ("", f"Well.\n{CALL}\n{CALL}", [], "stop")


def test_a_call_that_is_cut_off(client, script, tokenizer) -> None:
    tell(script, tokenizer, None, CALL)
    said = both(client, tools=[TOOL], max_tokens=CALL.encode().index(b"\xc3"))
    assert said.parts == ("", "", [["f", '{"a": "']], "length")


def test_every_choice_has_its_calls(client, script, tokenizer) -> None:
    tell(script, tokenizer, None, CALL)
    body = {"model": MODEL_NAME, "messages": MESSAGES, "tools": [TOOL], "n": 2}
    choices = client.chat.completions.create(**body).choices
    ids = [call.id for choice in choices for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("cut", [1, 5, 12, 25])
def test_llama_across_the_seam(cut, llama, script, tokenizer, first_ids) -> None:
    tell(script, tokenizer, first_ids[LLAMA_CALL[:cut]], LLAMA_CALL[cut:])
    assert both(llama, tools=[TOOL]).parts == ("", "", [["f", '{"a": "é"}']], "tool_calls")


@pytest.mark.parametrize("cut", [3, 7, 8, 12, 15, 22, 24])
def test_a_thought_across_the_seam(cut, client, script, tokenizer, first_ids) -> None:
    tell(script, tokenizer, first_ids[THOUGHT[:cut]], THOUGHT[cut:])
    assert both(client).parts == ("Hm.", "Yes.", [], "stop")


def test_a_thought_and_then_a_call(client, script, tokenizer) -> None:
    tell(script, tokenizer, None, f"<think>{CALL}</think>{CALL}")
    said = both(client, tools=[TOOL])
    assert said.parts == (CALL, "", [["f", '{"a": "é"}']], "tool_calls")


def test_the_result_of_a_call_goes_back(client, script, tokenizer) -> None:
    tell(script, tokenizer, None, CALL)
    body: dict[str, Any] = {"model": MODEL_NAME, "tools": [TOOL], "messages": [*MESSAGES]}
    message = client.chat.completions.create(**body).choices[0].message
    assert message.tool_calls is not None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "42"}
    tell(script, tokenizer, None, "So 42.")
    body["messages"] += [message, result]
    answer = client.chat.completions.create(**body)
    assert answer.choices[0].message.content == "So 42."
    body["messages"][-1] = {**result, "tool_call_id": "call_other"}
    with pytest.raises(openai.BadRequestError, match="tool_call_id"):
        client.chat.completions.create(**body)


def test_log_probabilities_of_every_token_once(client, script, tokenizer) -> None:
    tell(script, tokenizer, None, f"Well.\n{CALL}")
    body = {"model": MODEL_NAME, "messages": MESSAGES, "tools": [TOOL], "logprobs": True}
    logprobs = client.chat.completions.create(**body).choices[0].logprobs
    assert logprobs is not None
    expected = [list(raw) for raw in (bytes([b]) for b in f"Well.\n{CALL}".encode())]
    assert [entry.bytes for entry in logprobs.content or ()] == expected
    chunks = list(client.chat.completions.create(**body, stream=True))
    parts = [c.choices[0].logprobs for c in chunks]
    assert [e.bytes for p in parts if p for e in p.content or ()] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
        ),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"extra_body": {"guided_regex": "(a"}}, "guided_regex"),
        ({"extra_body": {"guided_regex": "a", "guided_choice": ["a"]}}, "guided_choice"),
    ],
)
def test_refusals(fields, param, client) -> None:
    body = {"model": MODEL_NAME, "messages": MESSAGES, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**body)
    assert caught.value.param == param


def test_tools_switched_off(engines, folder) -> None:
    with serve(engines, folder, tool_call_parser="none") as balancer:
        balancer.wait_ready()
        with balancer.client() as client, pytest.raises(openai.BadRequestError) as caught:
            whole(client, tools=[TOOL])
        assert caught.value.code == "unsupported_parameter"


# --- a model that is not told what to say ------------------------------------------------------


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A random model, which writes no call unless it must."""
    folder = make_tiny_model(tmp_path_factory.mktemp("free"))
    with EngineCluster(folder, **BIG) as engines, serve(engines, folder) as balancer:
        balancer.wait_ready()
        with balancer.client() as made:
            yield made
        engines.wait_idle()


CHOICE = {"type": "object", "properties": {"a": {"enum": ["x", "yes"]}}, "required": ["a"]}
CHOICE |= {"additionalProperties": False}
CHOICES = [
    {"type": "function", "function": {"name": name, "parameters": CHOICE}} for name in ("f", "g")
]


def test_a_demanded_call_is_made(free) -> None:
    fields: dict[str, Any] = {"tools": CHOICES, "parallel_tool_calls": False, "seed": 3}
    said = both(free, tool_choice="required", **fields)
    ((name, arguments),) = said.calls
    assert (name in ("f", "g"), said.content, said.finish) == (True, "", "tool_calls")
    assert json.loads(arguments)["a"] in ("x", "yes")
    named = {"type": "function", "function": {"name": "g"}}
    assert both(free, tool_choice=named, **fields).calls[0][0] == "g"


def test_a_format_is_kept_to(free) -> None:
    schema = {"name": "s", "strict": True, "schema": CHOICE}
    said = both(free, response_format={"type": "json_schema", "json_schema": schema}, seed=4)
    assert json.loads(said.content)["a"] in ("x", "yes")
    said = both(free, extra_body={"guided_choice": ["über", "no"]}, seed=5)
    assert said.content in ("über", "no")
    answer = free.completions.create(
        model=MODEL_NAME, prompt="x", max_tokens=20, extra_body={"guided_regex": "[ab]{3}"}
    )
    assert set(answer.choices[0].text) <= set("ab")
    assert len(answer.choices[0].text) == 3

"""Turns with calls and their results reach a template in its own terms, tools known to it or not."""

import pytest
from pydantic import ValidationError

from bootstrap.errors import ConfigError
from cluster.api.conversation import ChatMessage, template_messages
from cluster.api.errors import ApiError
from cluster.api.tools.definitions import ToolFields
from cluster.api.tools.formats import HERMES, LLAMA3, tool_format
from cluster.api.tools.parser import CallArguments, CallBegan, ToolCallParser
from cluster.api.tools.plan import plan_tools, prompt_of
from cluster.balancer.settings import TOOL_CALL_PARSERS, BalancerSettings

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
]


def rendered(*messages):
    return template_messages([ChatMessage.model_validate(m) for m in messages])


def test_what_a_template_that_knows_tools_gets():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert rendered({"role": "developer", "content": "Be brief."}, *TURNS) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi you"},
        {"role": "assistant", "content": "", "tool_calls": [call, {**call, "id": "c2"}]},
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "tool", "content": "two", "tool_call_id": "c2"},
    ]


def test_broken_arguments_of_an_earlier_answer_are_passed_on():
    broken = {**CALL, "function": {"name": "f", "arguments": '{"a": '}}
    (turn,) = rendered({"role": "assistant", "tool_calls": [broken]})
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_an_answer_can_be_sent_back_as_it_came():
    extra = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    answer = {"role": "assistant", "content": "A", "reasoning_content": "B", **extra}
    assert rendered(answer) == [{"role": "assistant", "content": "A", "reasoning_content": "B"}]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": None}],
        [{"role": "user", "content": "x", "tool_calls": [CALL]}],
        [{"role": "tool", "content": "x"}],
        [{"role": "tool", "content": "x", "tool_call_id": "c1"}],
        [*TURNS, {"role": "tool", "content": "x", "tool_call_id": "c9"}],
    ],
)
def test_messages_that_make_no_conversation(messages):
    with pytest.raises((ApiError, ValidationError)):
        rendered(*messages)


def test_shapes_that_are_refused():
    for message in (
        {"role": "robot", "content": "x"},
        {"role": "user", "content": "\ud800"},
        {"role": "user", "content": "x", "nonsense": 1},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]},
    ):
        with pytest.raises(ValidationError):
            ChatMessage.model_validate(message)


TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "description": "Does é."}}]}


@pytest.mark.parametrize("format", [HERMES, LLAMA3])
def test_a_template_without_tools_gets_words(format):
    plan = plan_tools(ToolFields.model_validate(TOOLS), format)
    messages, tools = prompt_of(rendered(*TURNS), plan, format, native=False)
    assert tools is None
    system, user, assistant, results = messages
    assert '"name": "f", "description": "Does é."' in system["content"]
    assert user == {"role": "user", "content": "Hi you"}
    assert results["role"] == "user"
    assert results["content"].count("<tool_response>") == 2
    parser = ToolCallParser(format, frozenset({"f"}))
    pieces = parser.push(assistant["content"]) + parser.finish()
    assert pieces[:2] == [CallBegan(0, "f"), CallArguments(0, '{"a": 1}')]
    assert len(pieces) == 4


def test_instructions_join_a_system_message():
    plan = plan_tools(ToolFields.model_validate(TOOLS), HERMES)
    turns = rendered({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    messages, _ = prompt_of(turns, plan, HERMES, native=False)
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[0]["content"].startswith("Be brief.\n\n# Tools")
    assert prompt_of(turns, None, HERMES, native=False)[0] == turns


def test_a_template_with_tools_gets_definitions():
    plan = plan_tools(ToolFields.model_validate(TOOLS), HERMES)
    turns = rendered(*TURNS)
    messages, tools = prompt_of(turns, plan, HERMES, native=True)
    assert messages == turns
    assert tools == [{"type": "function", "function": {"name": "f", "description": "Does é."}}]
    assert prompt_of(turns, None, HERMES, native=True)[1] is None


def test_formats_by_template():
    llama = '<|start_header_id|>{"name": function name, "parameters": {}}'
    assert tool_format("auto", "<tool_call>{{ x }}") is HERMES
    assert tool_format("auto", "{{ messages }}") is HERMES
    assert tool_format("auto", llama) is LLAMA3
    assert tool_format("auto", None) is None
    assert tool_format("none", "<tool_call>") is None
    assert tool_format("llama3_json", "<tool_call>") is LLAMA3
    assert tool_format("qwen", None) is HERMES


def test_every_setting_is_known():
    for name in TOOL_CALL_PARSERS[2:]:
        assert tool_format(name, None) is not None
    for field in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match=f"{field}='x'"):
            BalancerSettings(
                host="h", port=0, bootstrap="b", model_dir="m", model_name="m", **{field: "x"}
            )

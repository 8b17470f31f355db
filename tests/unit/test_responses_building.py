"""An answer's events, in OpenAI's order, add up to the answer."""

import pytest
from openai.types.responses import Response
from pydantic import ValidationError

from cluster.api.responses.answer import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseObject,
    ResponseUsage,
)
from cluster.api.responses.building import Building
from cluster.api.responses.request import ResponseRequest
from cluster.api.shaper import CallOpened, Reasoning
from cluster.api.tools.parser import CallArguments, Content

USAGE = ResponseUsage(
    input_tokens=3,
    input_tokens_details=InputTokensDetails(cached_tokens=2),
    output_tokens=4,
    output_tokens_details=OutputTokensDetails(),
    total_tokens=7,
)


def building():
    return Building(
        ResponseObject(
            id="resp_1",
            created_at=1,
            model="m",
            instructions=None,
            max_output_tokens=None,
            metadata={},
            parallel_tool_calls=True,
            temperature=1.0,
            text={"format": {"type": "text"}},
            tool_choice="auto",
            tools=[],
            top_p=1.0,
            user=None,
        )
    )


def run(*pieces, cut_off=False):
    made = building()
    events = made.begin() + [e for piece in pieces for e in made.add([piece])]
    events += made.end(USAGE, cut_off=cut_off)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    Response.model_validate(events[-1]["response"])
    return events


def test_the_sequence_of_a_text():
    events = run(Content("a"), Content("b"))
    assert [e["type"] for e in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[2]["item"]["content"] == []
    assert events[6]["text"] == "ab"
    (item,) = events[-1]["response"]["output"]
    assert (item["content"][0]["text"], item["status"]) == ("ab", "completed")
    assert len({e["item_id"] for e in events if "item_id" in e}) == 1
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["usage"]["total_tokens"] == 7


def test_thoughts_text_and_calls_are_items_of_their_own():
    events = run(
        Reasoning("hm"),
        Content("ok"),
        CallOpened(0, "call_1", "f"),
        CallArguments(0, "{"),
        CallArguments(0, "}"),
        CallOpened(1, "call_2", "g"),
        CallArguments(1, "{}"),
        cut_off=True,
    )
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [i["type"] for i in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert [i["status"] for i in response["output"]] == ["completed"] * 3 + ["incomplete"]
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert [(e["output_index"], e["delta"]) for e in deltas] == [(2, "{"), (2, "}"), (3, "{}")]
    assert response["output"][2]["call_id"] == "call_1"
    assert response["output"][2]["arguments"] == "{}"


def test_nothing_is_an_empty_message():
    events = run()
    assert not any(e["type"].endswith("delta") for e in events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_failure_is_one_event():
    made = building()
    made.begin()
    error = {"message": "no", "type": "server_error", "param": None, "code": "x"}
    event = made.failed(error)
    assert (event["type"], event["sequence_number"], event["error"]) == ("error", 2, error)
    assert (event["code"], event["message"]) == ("x", "no")


def chat(**fields):
    return ResponseRequest.model_validate({"model": "m", "input": "Hi", **fields}).as_chat()


def test_items_become_turns():
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None},
        {"type": "message", "role": "assistant", "content": "Well", "id": "msg_1"},
        {**call, "id": "fc_1", "status": "completed"},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "B"},
    ]
    turns = chat(input=items, instructions="Be brief.")["messages"]
    assert [(t["role"], t["content"]) for t in turns] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Well"),
        ("tool", "1"),
        ("tool", "2"),
        ("assistant", "A"),
        ("assistant", "B"),
    ]
    assert [c["id"] for c in turns[2]["tool_calls"]] == ["c1", "c2"]


def test_tools_and_formats_are_those_of_chat():
    body = chat(
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "s", "schema": {"a": 1}, "strict": True}},
        max_output_tokens=5,
    )
    assert body["tools"][0]["function"]["name"] == "f"
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body["response_format"]["json_schema"] == {
        "name": "s",
        "schema": {"a": 1},
        "strict": True,
    }
    assert body["max_completion_tokens"] == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"previous_response_id": "resp_1"},
        {"conversation": "c"},
        {"background": True},
        {"truncation": "auto"},
        {"nonsense": 1},
        {"tools": [{"type": "web_search"}]},
        {"input": []},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    ],
)
def test_what_is_refused(fields):
    with pytest.raises(ValidationError):
        chat(**fields)


def test_what_asks_for_nothing_is_taken():
    assert chat(store=False, previous_response_id=None, include=[], reasoning={"effort": "low"})

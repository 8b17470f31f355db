"""Bodies: what is taken, what is refused, and what the refusal says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.api.answer_schema import ChatDelta
from cluster.api.errors import ApiError, invalid_body
from cluster.api.schema import ChatCompletionRequest, CompletionRequest


def refusal(schema, **body) -> ApiError:
    with pytest.raises(ValidationError) as caught:
        schema.model_validate({"model": "m", **body})
    return invalid_body(caught.value.errors())


def completion(**body) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "x", **body})


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_all_shapes_of_prompts(prompt):
    assert completion(prompt=prompt).prompt == prompt


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], ["a", 1], [1, [2]], [-1], [1.5], None, {}])
def test_prompts_that_are_none(prompt):
    error = refusal(CompletionRequest, prompt=prompt)
    assert (error.status, error.param) == (400, "prompt")


@pytest.mark.parametrize(
    ("stop", "stops"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())]
)
def test_stops(stop, stops):
    assert completion(stop=stop).stops == stops


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", -0.1),
        ("temperature", True),
        ("top_p", 1.1),
        ("top_k", -2),
        ("n", 129),
        ("n", "2"),
        ("max_tokens", 1.0),
        ("seed", 1 << 63),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", list(range(129))),
        ("stop", ["a"] * 17),
        ("stop", "x" * 1025),
        ("stream", "perhaps"),
        ("ignore_eos", 7),
    ],
)
def test_values_out_of_range_name_their_field(field, value):
    error = refusal(CompletionRequest, prompt="x", **{field: value})
    assert error.param == field
    assert field in str(error)


def test_null_is_the_default_wherever_openai_says_so():
    fields = ("n", "temperature", "top_p", "seed", "max_tokens", "stop", "stream", "stream_options")
    assert completion(**dict.fromkeys(fields)) == completion()


def test_unknown_missing_and_unsupported_fields():
    assert "Unrecognized" in str(refusal(CompletionRequest, prompt="x", wrong=1))
    assert refusal(CompletionRequest).param == "prompt"
    error = refusal(
        ChatCompletionRequest, messages=[{"role": "user", "content": "x"}], functions=[{}]
    )
    assert (error.param, error.code) == ("functions", "unsupported_parameter")
    error = refusal(CompletionRequest, prompt="x", suffix="y")
    assert (error.param, error.code) == ("suffix", "unsupported_parameter")
    error = refusal(CompletionRequest, prompt="x", logprobs=True)
    assert error.param == "logprobs"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "wizard", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]},
        "hello",
    ],
)
def test_messages_that_cannot_be_answered(message):
    assert refusal(ChatCompletionRequest, messages=[message]).param == "messages"


def test_text_that_no_tokenizer_takes_is_refused_wherever_it_stands():
    for body in (
        {"prompt": "\ud800"},
        {"prompt": "x", "stop": "\udfff"},
        {"prompt": "x", "stop": ["\udfff"]},
        {"prompt": "x", "model": "\ud800"},
        {"prompt": "x", "\ud800": 1},
    ):
        error = refusal(CompletionRequest, **body)
        assert json.dumps(error.body, ensure_ascii=False).encode()
    for content in ("\ud800", [{"type": "text", "text": "\ud800"}]):
        refusal(ChatCompletionRequest, messages=[{"role": "user", "content": content}])


def test_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    assert ChatCompletionRequest.model_validate(body).messages[0].text == "ab"


def test_a_delta_shows_only_what_it_adds():
    assert ChatDelta().model_dump_json() == "{}"
    assert ChatDelta(content="x").model_dump_json() == '{"content":"x"}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from([*ChatCompletionRequest.model_fields, "tools", "user", "logit_bias", "x"])


@given(st.dictionaries(names, json_values, max_size=6) | json_values)
def test_whatever_is_sent_gets_an_answer_with_a_message(body):
    for model in (CompletionRequest, ChatCompletionRequest):
        try:
            model.model_validate(body)
        except ValidationError as error:
            refused = invalid_body(error.errors())
            assert refused.status == 400
            assert refused.body["error"]["message"]


def test_a_template_variable_that_is_half_a_character():
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"\ud800": 1}}
    error = refusal(ChatCompletionRequest, **body)
    assert error.param == "chat_template_kwargs"
    assert "'\\ud800' cannot be set" in str(error)

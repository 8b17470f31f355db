"""Every field on both wrong sides, and the exact error; no worker hears of any of it."""

import json
from typing import Any

import pytest

from cluster.api.schema import MAX_STOP_LENGTH, MAX_STOP_TOKEN_IDS, MAX_STOPS
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL
from tests.support.tiny_model import VOCAB_SIZE

cluster = balancer_cluster.cluster
ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster
tokenizer = balancer_cluster.tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CHAT_BODY = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
COMPLETION_BODY = {"model": MODEL, "prompt": "x"}

NUMBER = "must be a number."
INTEGER = "must be an integer."
BOOLEAN = "must be true or false."
STOP = f"a string of 1 to {MAX_STOP_LENGTH} characters, or an array of up to {MAX_STOPS} of them."
PROMPT = "a non-empty string, array of strings, array of token ids, or array of such arrays."


def least(value: object) -> str:
    return f"must be at least {value}."


def most(value: object) -> str:
    return f"must be at most {value}."


# On both routes: field, value, what is said of it.
BOTH: list[tuple[str, Any, str]] = [
    ("model", 5, "must be a string."),
    ("n", 0, least(1)),
    ("n", 129, most(128)),
    ("n", 1.5, INTEGER),
    ("n", True, INTEGER),
    ("temperature", -0.01, least(0)),
    ("temperature", 2.01, most(2)),
    ("temperature", "1", NUMBER),
    ("temperature", True, NUMBER),
    ("top_p", 0, "must be greater than 0."),
    ("top_p", 1.01, most(1)),
    ("top_k", -2, least(-1)),
    ("top_k", 1 << 31, "must be less than 2147483648."),
    ("top_k", 2.5, INTEGER),
    ("min_p", -0.01, least(0)),
    ("min_p", 1.01, most(1)),
    ("frequency_penalty", -2.01, least(-2)),
    ("frequency_penalty", 2.01, most(2)),
    ("presence_penalty", -2.01, least(-2)),
    ("presence_penalty", 2.01, most(2)),
    ("repetition_penalty", 0, "must be greater than 0."),
    ("repetition_penalty", 100.1, most(100)),
    ("seed", (1 << 63), "must be less than 9223372036854775808."),
    ("seed", -(1 << 63) - 1, least(-(1 << 63))),
    ("seed", "1", INTEGER),
    ("max_tokens", -1, None),
    ("max_tokens", (1 << 20) + 1, most(1 << 20)),
    ("max_tokens", "5", INTEGER),
    ("min_tokens", -1, least(0)),
    ("min_tokens", (1 << 20) + 1, most(1 << 20)),
    ("stop", "", STOP),
    ("stop", [""], STOP),
    ("stop", 5, STOP),
    ("stop", "x" * (MAX_STOP_LENGTH + 1), STOP),
    ("stop", ["x"] * (MAX_STOPS + 1), STOP),
    ("stop_token_ids", [-1], None),
    ("stop_token_ids", [VOCAB_SIZE], f"Token id 300 is not in the vocabulary of {VOCAB_SIZE} ids."),
    ("stop_token_ids", [1] * (MAX_STOP_TOKEN_IDS + 1), None),
    ("stop_token_ids", 5, None),
    ("logit_bias", {"5": 100.1}, None),
    ("logit_bias", {"5": -100.1}, None),
    ("logit_bias", {"5": True}, None),
    ("logit_bias", {" the": 1}, 'keys must be token ids, as in "50256".'),
    ("logit_bias", {"05": 1}, 'keys must be token ids, as in "50256".'),
    ("logit_bias", {"-1": 1}, 'keys must be token ids, as in "50256".'),
    ("logit_bias", {"300": 1}, f"Token id 300 is not in the vocabulary of {VOCAB_SIZE} ids."),
    ("logit_bias", {str(i): 1 for i in range(1025)}, None),
    ("logit_bias", [], None),
    ("ignore_eos", 1, BOOLEAN),
    ("skip_special_tokens", "no", BOOLEAN),
    ("include_stop_str_in_output", None, BOOLEAN),
    ("return_token_ids", "yes", BOOLEAN),
    ("return_tokens_as_token_ids", 0, BOOLEAN),
    ("include_stats", 2, BOOLEAN),
    ("stream", "yes", BOOLEAN),
    (
        "stream_options",
        {"include_usage": True},
        "'stream_options' is only allowed when 'stream' is true.",
    ),
    ("prompt_logprobs", -1, least(0)),
    ("prompt_logprobs", 21, most(20)),
    ("priority", 1, "'priority' is not supported by this server."),
    ("use_beam_search", True, "'use_beam_search' is not supported by this server."),
    ("nonsense", 1, "Unrecognized request argument supplied: nonsense"),
]
OF_COMPLETIONS: list[tuple[str, Any, str | None]] = [
    ("prompt", "", PROMPT),
    ("prompt", [], PROMPT),
    ("prompt", [[]], PROMPT),
    ("prompt", ["a", ""], PROMPT),
    ("prompt", ["a", 1], PROMPT),
    ("prompt", [1, "a"], PROMPT),
    ("prompt", None, PROMPT),
    ("prompt", [VOCAB_SIZE], f"Token id 300 is not in the vocabulary of {VOCAB_SIZE} ids."),
    ("prompt", [[5], [VOCAB_SIZE]], f"Token id 300 is not in the vocabulary of {VOCAB_SIZE} ids."),
    ("logprobs", -1, least(0)),
    ("logprobs", 21, most(20)),
    ("logprobs", True, INTEGER),
    ("echo", "yes", BOOLEAN),
    ("best_of", 0, least(1)),
    ("best_of", 2, "'best_of' must equal 'n': all samples are returned."),
    ("max_tokens", 0, "'max_tokens' must be at least 1 unless 'echo' is true."),
    ("suffix", "x", "'suffix' is not supported by this server."),
    ("top_logprobs", 1, "Unrecognized request argument supplied: top_logprobs"),
    ("messages", [], "Unrecognized request argument supplied: messages"),
]
OF_CHAT: list[tuple[str, Any, str | None]] = [
    ("messages", [], None),
    ("messages", "x", None),
    ("messages", [{"role": "wizard", "content": "x"}], None),
    ("messages", [{"role": "user", "content": 5}], None),
    ("logprobs", 1, BOOLEAN),
    ("top_logprobs", 1, "'top_logprobs' is only allowed when 'logprobs' is true."),
    ("max_tokens", 0, least(1)),
    ("max_completion_tokens", 0, least(1)),
    ("max_completion_tokens", (1 << 20) + 1, most(1 << 20)),
    ("echo", True, "'echo' is not supported by this server."),
    ("best_of", 1, "Unrecognized request argument supplied: best_of"),
    ("prompt", "x", "Unrecognized request argument supplied: prompt"),
    ("modalities", ["text", "audio"], "'modalities' is not supported by this server."),
    ("audio", {"voice": "x"}, "'audio' is not supported by this server."),
    ("chat_template_kwargs", {"messages": []}, "'messages' cannot be set."),
    ("chat_template_kwargs", {"a b": 1}, "'a b' cannot be set."),
    ("chat_template_kwargs", 5, None),
]
CASES = (
    [(COMPLETIONS, *case) for case in (*BOTH, *OF_COMPLETIONS)]
    + [(CHAT, *case) for case in (*BOTH, *OF_CHAT)]
)  # fmt: skip


@pytest.fixture(scope="module")
def shared(tokenizer, ids):
    made = balancer_cluster.Cluster(tokenizer, ids)
    vars(made).update(vars(made.pair()))
    made.wait_ready()
    yield made
    made.close()


@pytest.mark.parametrize(("path", "field", "value", "said"), CASES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_value(shared, path, field, value, said, stream) -> None:
    body = {**(CHAT_BODY if path == CHAT else COMPLETION_BODY), "stream": stream, field: value}
    if field == "stream_options":
        body["stream"] = False
    answer = shared.http.post(path, json=body, headers={"X-Request-Id": "wrong"})
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "wrong"
    ((name, error),) = answer.json().items()
    assert name == "error"
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    unsupported = error["message"].endswith("is not supported by this server.")
    assert error["code"] == ("unsupported_parameter" if unsupported else None)
    assert error["message"]
    if said is not None:
        text = error["message"]
        assert text in (said, f"Invalid value for '{field}': {said}"), text
    assert shared.p.of("wrong") == shared.d.of("wrong") == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "seed"])
def test_numbers_that_are_none(shared, field, number) -> None:
    raw = json.dumps({**COMPLETION_BODY, field: 0}).replace(f'"{field}": 0', f'"{field}": {number}')
    answer = shared.http.post(
        COMPLETIONS, content=raw, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] in (field, None)


def test_prompt_scores_are_not_streamed(shared) -> None:
    body = {**COMPLETION_BODY, "prompt_logprobs": 1, "stream": True}
    error = shared.http.post(COMPLETIONS, json=body).json()["error"]
    assert error["param"] == "prompt_logprobs"
    assert error["message"] == "'prompt_logprobs' is not available when 'stream' is true."


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_no_pair_holds(shared, path) -> None:
    """Against the smaller of both pools' limits: 256 tokens."""
    base = CHAT_BODY if path == CHAT else COMPLETION_BODY
    param = "messages" if path == CHAT else "prompt"
    error = shared.http.post(path, json={**base, "max_tokens": 256}).json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert "maximum context length is 256 tokens" in error["message"]
    assert "256 in the completion" in error["message"]
    body = {**base, "max_tokens": 4, "min_tokens": 5}
    error = shared.http.post(path, json=body).json()["error"]
    assert error["param"] == "min_tokens"


def test_one_bad_prompt_refuses_all(shared) -> None:
    body = {**COMPLETION_BODY, "prompt": [[5], [6] * 300]}
    answer = shared.http.post(COMPLETIONS, json=body, headers={"X-Request-Id": "all"})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert shared.p.of("all") == []


def test_too_many_samples_of_too_many_prompts(shared) -> None:
    body = {**COMPLETION_BODY, "prompt": [[5]] * 10, "n": 100}
    error = shared.http.post(COMPLETIONS, json=body).json()["error"]
    assert error["param"] == "n"
    assert "512" in error["message"]


def test_an_unknown_event(shared) -> None:
    body = {**COMPLETION_BODY, "stream": True}
    answer = shared.http.post(COMPLETIONS, json=body, headers={"Last-Event-ID": "cmpl-1-5"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("Last-Event-ID", "stream_not_found")

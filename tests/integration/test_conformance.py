"""Every field at its valid edges: streamed, not streamed, over a pair and on one engine, all the same."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.conformance import MAX_TOKENS, Case, Expected, Oracle
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.streams import Json, chunks_of, joined_chat, joined_completion
from tests.support.tiny_model import EOS_TOKEN_ID, VOCAB_SIZE, make_tiny_model

PROMPT = "The tea of the north, 日本 and a song"
MESSAGES = [{"role": "user", "content": "Sing of the wind."}]
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(model_dir: Path) -> Oracle:
    return Oracle(model_dir)


@pytest.fixture(scope="module")
def http(model_dir: Path) -> Iterator[httpx.Client]:
    with (
        EngineCluster(model_dir, max_num_batched_tokens=9) as engines,
        HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):
        balancer.wait_ready()
        with httpx.Client(base_url=balancer.url, timeout=60) as client:
            yield client
        engines.wait_idle()


@pytest.fixture(scope="module")
def prompt_ids(oracle: Oracle) -> list[int]:
    return oracle.tokenizer.encode(PROMPT)


@pytest.fixture(scope="module")
def chat_ids(oracle: Oracle) -> list[int]:
    return oracle.tokenizer.apply_chat_template(MESSAGES)


def ask(http: httpx.Client, path: str, body: Json) -> Json:
    """The whole answer, which the streamed one must equal in every field but id and time."""
    body = {"model": MODEL_NAME, "max_tokens": MAX_TOKENS, "temperature": 0, **body}
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    whole: Json = answer.json()
    assert isinstance(whole["created"], int)
    assert whole["id"].startswith("chatcmpl-" if "chat" in path else "cmpl-")
    if "prompt_logprobs" not in body:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        joined = joined_chat if "chat" in path else joined_completion
        streamed = joined(chunks_of(http.post(path, json={**body, **options})))
        assert_same(streamed, whole)
    return whole


def assert_same(one: Json, other: Json) -> None:
    """All but what differs from call to call: identity, and how much of a prompt was cached."""
    for answer in (one, other):
        answer.get("usage", {}).pop("prompt_tokens_details", None)
    left_out = ("id", "created")
    _assert_close(*({k: v for k, v in a.items() if k not in left_out} for a in (one, other)))


def _assert_close(one: Any, other: Any) -> None:
    """Equal but for rounding: a cached prefix is computed in chunks of other sizes."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            _assert_close(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            _assert_close(*pair)
    else:
        assert one == (close(other) if isinstance(one, float) else other)


def check(whole: Json, expected: list[Expected], prompt: list[int]) -> None:
    """Texts, finish reasons and usage."""
    texts = [c["text"] if "text" in c else c["message"]["content"] for c in whole["choices"]]
    assert texts == [choice.text for choice in expected]
    assert [c["finish_reason"] for c in whole["choices"]] == [c.finish for c in expected]
    assert [c["index"] for c in whole["choices"]] == list(range(len(expected)))
    usage, num_output = whole["usage"], sum(len(choice.tokens) for choice in expected)
    assert usage["prompt_tokens"] == len(prompt)
    assert usage["completion_tokens"] == num_output
    assert usage["total_tokens"] == len(prompt) + num_output
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


BOTH_ROUTES = {
    "greedy": Case(),
    "temperature-0.7": Case({"temperature": 0.7, "seed": 3}, {"temperature": 0.7, "seed": 3}),
    "temperature-2": Case({"temperature": 2, "seed": 3}, {"temperature": 2.0, "seed": 3}),
    "seed-least": Case({"temperature": 1, "seed": -(1 << 63)}, {"temperature": 1.0, "seed": 0}),
    "seed-most": Case(
        {"temperature": 1, "seed": (1 << 63) - 1}, {"temperature": 1.0, "seed": (1 << 63) - 1}
    ),
    "top_p-least": Case(
        {"temperature": 1, "seed": 3, "top_p": 1e-9},
        {"temperature": 1.0, "seed": 3, "top_p": 1e-9},
    ),
    "top_p-1": Case({"temperature": 1, "seed": 3, "top_p": 1}, {"temperature": 1.0, "seed": 3}),
    "top_k-off": Case({"temperature": 1, "seed": 3, "top_k": -1}, {"temperature": 1.0, "seed": 3}),
    "top_k-0": Case({"temperature": 1, "seed": 3, "top_k": 0}, {"temperature": 1.0, "seed": 3}),
    "top_k-5": Case(
        {"temperature": 1, "seed": 3, "top_k": 5}, {"temperature": 1.0, "seed": 3, "top_k": 5}
    ),
    "top_k-most": Case(
        {"temperature": 1, "seed": 3, "top_k": (1 << 31) - 1},
        {"temperature": 1.0, "seed": 3, "top_k": (1 << 31) - 1},
    ),
    "min_p-0": Case({"temperature": 1, "seed": 3, "min_p": 0}, {"temperature": 1.0, "seed": 3}),
    "min_p-0.2": Case(
        {"temperature": 1, "seed": 3, "min_p": 0.2}, {"temperature": 1.0, "seed": 3, "min_p": 0.2}
    ),
    "min_p-1": Case({"temperature": 1, "seed": 3, "min_p": 1}, {"temperature": 0.0}),
    "frequency-most": Case({"frequency_penalty": 2}, {"frequency_penalty": 2.0}),
    "frequency-least": Case({"frequency_penalty": -2}, {"frequency_penalty": -2.0}),
    "presence-most": Case({"presence_penalty": 2}, {"presence_penalty": 2.0}),
    "presence-least": Case({"presence_penalty": -2}, {"presence_penalty": -2.0}),
    "repetition-most": Case({"repetition_penalty": 100}, {"repetition_penalty": 100.0}),
    "repetition-small": Case({"repetition_penalty": 0.01}, {"repetition_penalty": 0.01}),
    "bias-most": Case({"logit_bias": {"70": 100}}, {"logit_bias": ((70, 100.0),)}),
    "bias-least": Case(
        {"logit_bias": {str(i): -100 for i in range(100, VOCAB_SIZE)}},
        {"logit_bias": tuple((i, -100.0) for i in range(100, VOCAB_SIZE))},
    ),
    "n-3": Case({"n": 3, "temperature": 1, "seed": 3}, {"temperature": 1.0, "seed": 3}, n=3),
    "max_tokens-1": Case({"max_tokens": 1}, {"max_tokens": 1}),
    "max_tokens-2": Case({"max_tokens": 2}, {"max_tokens": 2}),
    "ignore_eos": Case(
        {"ignore_eos": True, "logit_bias": {str(EOS_TOKEN_ID): 100}},
        {"stop_token_ids": (), "logit_bias": ((EOS_TOKEN_ID, 100.0),)},
    ),
    "eos": Case({"logit_bias": {"2": 100}}, {"logit_bias": ((2, 100.0),)}),
    "min_tokens": Case(
        {"logit_bias": {"2": 100}, "min_tokens": 4}, {"logit_bias": ((2, 100.0),), "min_tokens": 4}
    ),
    "min_tokens-most": Case({"min_tokens": MAX_TOKENS}, {"min_tokens": MAX_TOKENS}),
    "special-shown": Case(
        {"logit_bias": {"1": 100}, "skip_special_tokens": False},
        {"logit_bias": ((1, 100.0),)},
        skip_special_tokens=False,
    ),
    "special-skipped": Case({"logit_bias": {"1": 100}}, {"logit_bias": ((1, 100.0),)}),
    "eos-shown": Case(
        {
            "logit_bias": {"2": 100},
            "min_tokens": 3,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
        },
        {"logit_bias": ((2, 100.0),), "min_tokens": 3},
        include_stop=True,
        skip_special_tokens=False,
    ),
}


@pytest.mark.parametrize("name", BOTH_ROUTES)
def test_sampling_and_text_fields(name, http, oracle, prompt_ids, chat_ids) -> None:
    case = BOTH_ROUTES[name]
    whole = ask(http, "/v1/completions", {"prompt": PROMPT, **case.fields})
    check(whole, oracle.choices(prompt_ids, case), prompt_ids)
    whole = ask(http, "/v1/chat/completions", {"messages": MESSAGES, **case.fields})
    check(whole, oracle.choices(chat_ids, case), chat_ids)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("at", range(4))
def test_stop_strings_and_stop_ids_anywhere(at, include, http, oracle, prompt_ids) -> None:
    """The stop begins with the bootstrap token, the token after it, and so on; all of it is ASCII."""
    spelled = [oracle.tokenizer.bytes_of(i) for i in range(VOCAB_SIZE)]
    banned = [i for i, raw in enumerate(spelled) if i < 3 or not raw.decode("latin1").isprintable()]
    banned += [i for i, raw in enumerate(spelled) if not raw.isascii() and i not in banned]
    fields: Json = {
        "include_stop_str_in_output": include,
        "logit_bias": {str(i): -100 for i in banned},
    }
    bias = {"logit_bias": tuple((i, -100.0) for i in sorted(banned))}
    (base,) = oracle.choices(prompt_ids, Case(sampling=bias))
    cases = []
    for length in (1, 2, 3):
        stop = base.text[at : at + length]
        more = {"stop": ["\u2603", stop], **fields}
        cases.append(Case(more, bias, stops=(stop,), include_stop=include))
    ends = {"stop_token_ids": (base.ids[at], EOS_TOKEN_ID), **bias}
    cases.append(Case({"stop_token_ids": [base.ids[at]], **fields}, ends, include_stop=include))
    for case in cases:
        expected = oracle.choices(prompt_ids, case)
        assert expected[0].finish == "stop"
        body = {"prompt": PROMPT, **case.fields}
        check(ask(http, "/v1/completions", body), expected, prompt_ids)


def test_as_many_stop_strings_as_are_documented(http, oracle, prompt_ids) -> None:
    stops = tuple(f"\u2603{number}" for number in range(16))
    whole = ask(http, "/v1/completions", {"prompt": PROMPT, "stop": stops})
    check(whole, oracle.choices(prompt_ids, Case(stops=stops)), prompt_ids)


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_logprobs_of_completions(num_top, http, oracle, prompt_ids) -> None:
    case = Case(
        {"logprobs": num_top, "temperature": 1.5, "seed": 5, "return_token_ids": True},
        {"temperature": 1.5, "seed": 5, "num_logprobs": num_top},
    )
    whole = ask(http, "/v1/completions", {"prompt": PROMPT, **case.fields})
    (expected,) = oracle.choices(prompt_ids, case)
    check(whole, [expected], prompt_ids)
    (choice,) = whole["choices"]
    assert choice["token_ids"] == expected.ids
    assert choice["prompt_token_ids"] == prompt_ids
    shape = choice["logprobs"]
    assert shape["tokens"] == [name_of(oracle, i, "bytes:") for i in expected.ids]
    assert shape["token_logprobs"] == close([token.logprob for token in expected.tokens])
    for token, top in zip(expected.tokens, shape["top_logprobs"], strict=True):
        rivals = {name_of(oracle, i, "bytes:"): value for i, value in token.top}
        rivals[name_of(oracle, token.token_id, "bytes:")] = token.logprob
        assert set(top) == set(rivals)
        assert [top[name] for name in rivals] == close(list(rivals.values()))
    offsets = shape["text_offset"]
    assert offsets == sorted(offsets)
    assert (offsets[0], len(offsets)) == (0, len(expected.ids))
    for place, token_id in zip(offsets, expected.ids, strict=True):
        spelled = text_of(oracle, token_id)
        assert spelled is None or choice["text"].startswith(spelled, place)


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_logprobs_of_chat(num_top, http, oracle, chat_ids) -> None:
    sampling = {"temperature": 1.5, "seed": 5}
    case = Case(
        {**sampling, "logprobs": True, "top_logprobs": num_top, "return_token_ids": True},
        {**sampling, "num_logprobs": num_top},
    )
    whole = ask(http, "/v1/chat/completions", {"messages": MESSAGES, **case.fields})
    (expected,) = oracle.choices(chat_ids, case)
    check(whole, [expected], chat_ids)
    (choice,) = whole["choices"]
    assert choice["token_ids"] == expected.ids
    assert whole["prompt_token_ids"] == chat_ids
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    tokens = expected.tokens[: expected.num_shown]
    assert [entry["token"] for entry in content] == [
        name_of(oracle, token.token_id, "") for token in tokens
    ]
    assert [entry["logprob"] for entry in content] == close([token.logprob for token in tokens])
    for token, entry in zip(tokens, content, strict=True):
        assert bytes(entry["bytes"]) == oracle.tokenizer.bytes_of(token.token_id)
        assert [rival["token"] for rival in entry["top_logprobs"]] == [
            name_of(oracle, i, "") for i, _ in token.top
        ]
        assert [r["logprob"] for r in entry["top_logprobs"]] == close([v for _, v in token.top])
    raw = b"".join(bytes(entry["bytes"]) for entry in content)
    assert raw.decode(errors="replace") == choice["message"]["content"]


def test_logprobs_without_a_number_of_rivals(http) -> None:
    whole = ask(http, "/v1/chat/completions", {"messages": MESSAGES, "logprobs": True})
    content = whole["choices"][0]["logprobs"]["content"]
    assert content
    assert all(entry["top_logprobs"] == [] for entry in content)
    off = ask(http, "/v1/chat/completions", {"messages": MESSAGES, "logprobs": False})
    assert off["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_echo_with_logprobs(max_tokens, http, oracle, prompt_ids) -> None:
    fields = {"echo": True, "logprobs": 3, "max_tokens": max_tokens, "return_token_ids": True}
    whole = ask(http, "/v1/completions", {"prompt": PROMPT, **fields})
    (choice,) = whole["choices"]
    case = Case(sampling={"max_tokens": max(1, max_tokens), "num_logprobs": 3})
    (expected,) = oracle.choices(prompt_ids, case)
    tokens = expected.tokens if max_tokens else ()
    assert choice["text"] == PROMPT + (expected.text if max_tokens else "")
    assert choice["finish_reason"] == "length"
    assert choice["token_ids"] == [token.token_id for token in tokens]
    assert whole["usage"]["completion_tokens"] == max_tokens
    scores = oracle.prompt_scores(prompt_ids, 3)
    shape = choice["logprobs"]
    assert shape["token_logprobs"][0] is shape["top_logprobs"][0] is None
    assert shape["token_logprobs"][1:] == close([s.logprob for s in (*scores, *tokens)])
    assert len(shape["tokens"]) == len(prompt_ids) + max_tokens
    assert shape["text_offset"][len(prompt_ids) :][:1] == [len(PROMPT)][: max_tokens and 1]


@pytest.mark.parametrize("num", [0, 5])
def test_prompt_logprobs(num, http, oracle, prompt_ids, chat_ids) -> None:
    body = {"prompt": [prompt_ids, prompt_ids[:3]], "prompt_logprobs": num, "max_tokens": 2}
    whole = ask(http, "/v1/completions", body)
    for choice, prompt in zip(whole["choices"], body["prompt"], strict=True):
        check_prompt_scores(choice["prompt_logprobs"], oracle, prompt, num)
    body = {"messages": MESSAGES, "prompt_logprobs": num, "max_tokens": 2, "n": 2}
    whole = ask(http, "/v1/chat/completions", body)
    check_prompt_scores(whole["prompt_logprobs"], oracle, chat_ids, num)


def check_prompt_scores(shown: Any, oracle: Oracle, prompt: list[int], num: int) -> None:
    scores = oracle.prompt_scores(prompt, num)
    assert shown[0] is None
    for entry, token_id, score in zip(shown[1:], prompt[1:], scores, strict=True):
        assert set(entry) == {str(token_id), *(str(i) for i, _ in score.top)}
        assert entry[str(token_id)]["logprob"] == close(score.logprob)
        for rank, (rival, value) in enumerate(score.top, 1):
            assert entry[str(rival)]["rank"] == rank
            assert entry[str(rival)]["logprob"] == close(value)


def test_prompts_of_every_shape_answer_prompt_by_prompt(http, oracle) -> None:
    texts = ["The tea", "of the north"]
    ids = [oracle.tokenizer.encode(text) for text in texts]
    case = Case({"n": 2, "temperature": 1, "seed": 4}, {"temperature": 1.0, "seed": 4}, n=2)
    expected = [choice for prompt in ids for choice in oracle.choices(prompt, case)]
    for prompt in (texts, ids):
        whole = ask(http, "/v1/completions", {"prompt": prompt, **case.fields})
        check(whole, expected, [*ids[0], *ids[1]])
    alone = oracle.choices(ids[1], Case())
    for prompt in (texts[1], ids[1], [texts[1]], [ids[1]]):
        check(ask(http, "/v1/completions", {"prompt": prompt}), alone, ids[1])


def test_echo_of_many_prompts_and_samples(http) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "best_of": 2, "echo": True, "max_tokens": 1}
    whole = ask(http, "/v1/completions", body)
    assert [choice["text"][:3] for choice in whole["choices"]] == ["one", "one", "two", "two"]


def test_defaults(http, oracle, prompt_ids) -> None:
    body = {"model": MODEL_NAME, "prompt": PROMPT}
    whole = http.post("/v1/completions", json=body).json()
    assert whole["usage"]["completion_tokens"] <= 16
    assert set(whole["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
    assert set(whole) == {"id", "object", "created", "model", "choices", "usage"}
    nulls = ("n", "temperature", "top_p", "logprobs", "echo", "stop", "logit_bias", "max_tokens")
    again = http.post("/v1/completions", json={**body, **dict.fromkeys(nulls), "seed": 1}).json()
    once = http.post("/v1/completions", json={**body, "seed": 1}).json()
    assert_same(again, once)


def test_what_is_ignored_changes_nothing(http) -> None:
    plain = ask(http, "/v1/chat/completions", {"messages": MESSAGES})
    ignored = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
        "prompt_cache_key": "x",
        "safety_identifier": "y",
        "verbosity": "low",
        "priority": 0,
    }
    with_all = ask(http, "/v1/chat/completions", {"messages": MESSAGES, **ignored})
    assert_same(with_all, plain)


def test_cached_tokens_are_those_of_prefill(http, oracle) -> None:
    prompt = [50 + i % 7 * 3 for i in range(41)]
    body = {"prompt": prompt, "model": MODEL_NAME, "max_tokens": 3}
    counts = []
    for _ in range(2):
        usage = http.post("/v1/completions", json=body).json()["usage"]
        counts.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert counts == [0, 40]


def test_statistics_on_demand(http) -> None:
    body = {"model": MODEL_NAME, "messages": MESSAGES, "max_tokens": 4, "include_stats": True}
    whole = http.post("/v1/chat/completions", json=body).json()
    stats = whole["choices"][0]["stats"]
    chunks = chunks_of(http.post("/v1/chat/completions", json={**body, "stream": True}))
    parts = [part for chunk in chunks for part in chunk["choices"]]
    assert [("stats" in part) for part in parts] == [bool(p["finish_reason"]) for p in parts]
    assert set(parts[-1]["stats"]) == set(stats)
    assert 0 < stats["ttft_s"] <= stats["total_s"]
    assert stats["prefill_s"] <= stats["ttft_s"]
    assert stats["attempts"] == 1
    if whole["usage"]["completion_tokens"] > 1:
        assert math.isfinite(stats["itl_s"] + stats["handoff_s"] + stats["decode_s"])


def test_usage_in_every_chunk_on_demand(http) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": MODEL_NAME, "prompt": PROMPT, "stream": True, "stream_options": options}
    chunks = chunks_of(http.post("/v1/completions", json=body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["choices"] == []
    assert counts[0] >= 1


def name_of(oracle: Oracle, token_id: int, prefix: str) -> str:
    spelled = text_of(oracle, token_id)
    if spelled is not None:
        return spelled
    raw = oracle.tokenizer.bytes_of(token_id)
    return prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def text_of(oracle: Oracle, token_id: int) -> str | None:
    try:
        return oracle.tokenizer.bytes_of(token_id).decode()
    except UnicodeDecodeError:
        return None


def close(value: Any) -> Any:
    return pytest.approx(value, abs=TOLERANCE)

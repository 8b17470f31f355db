"""What an answer holds beside its text: over a pair and on one engine, streamed and not."""

import math
from typing import Any

import pytest

from tests.support import conformance_cluster
from tests.support.conformance import Case, Oracle
from tests.support.conformance_cluster import (
    MESSAGES,
    PROMPT,
    ask,
    assert_same,
    check,
    close,
    name_of,
    text_of,
)
from tests.support.engine_cluster import MODEL_NAME
from tests.support.streams import chunks_of

model_dir = conformance_cluster.model_dir
oracle = conformance_cluster.oracle
http = conformance_cluster.http
prompt_ids = conformance_cluster.prompt_ids
chat_ids = conformance_cluster.chat_ids


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

"""Answers and refusals of the real application over real HTTP, asked by the official client."""

import json

import msgspec
import openai
import pytest

from bootstrap.identity import Role
from bootstrap.messages import FailureReason
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, TEXT, chat, complete
from tests.support.members import LIMITS
from tests.support.tiny_model import VOCAB_SIZE
from tests.support.waiting import wait_for

cluster = balancer_cluster.cluster
ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster
tokenizer = balancer_cluster.tokenizer


def test_chat_whole_and_streamed_agree(cluster, ids):
    whole = chat(cluster)
    assert whole.choices[0].message.content == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == len(ids)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + len(ids)
    chunks = list(chat(cluster, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1


def test_completion_whole_and_streamed_agree(cluster):
    assert complete(cluster).choices[0].text == TEXT
    chunks = list(complete(cluster, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(c.usage is None for c in chunks)


def test_the_bytes_of_a_stream(cluster):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    answer = cluster.http.post(
        "/v1/chat/completions", json=body, headers={"X-Request-Id": "mine-1"}
    )
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    first = json.loads(events[0].removeprefix("data: "))
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert "usage" not in first
    assert cluster.p.of("mine-1")[0].request_id == "mine-1"


def test_samples_and_lists_of_prompts_are_rooms_of_their_own(cluster, tokenizer, ids):
    answer = complete(cluster, prompt=["one", "two"], n=2, seed=7, max_tokens=3)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    expected = tokenizer.decode(ids[:3])
    assert {c.text for c in answer.choices} == {expected}
    assert {c.finish_reason for c in answer.choices} == {"length"}
    assert answer.usage.completion_tokens == 12
    sent = [d for d in cluster.p.dispatches if not d.request_id.startswith("probe")]
    assert len({d.room for d in sent}) == 4
    seeds = [d.sampling.seed for d in sorted(sent, key=lambda d: d.request_id)]
    assert seeds[:2] == seeds[2:]
    assert len(set(seeds)) == 2


def test_prompts_may_be_ids(cluster):
    answer = complete(cluster, prompt=[[5, 6, 7], [8, 9]], max_tokens=2)
    assert answer.usage.prompt_tokens == 5
    complete(cluster, prompt=[5, 6, 7], max_tokens=2)
    assert cluster.p.dispatches[-1].prompt_token_ids == (5, 6, 7)


def test_sampling_arrives_at_both_legs(cluster):
    complete(
        cluster,
        temperature=0.5,
        top_p=0.25,
        seed=9,
        max_tokens=4,
        extra_body={
            "top_k": 3,
            "min_tokens": 2,
            "stop_token_ids": [7],
            "ignore_eos": True,
        },
    )
    prefill, decode = cluster.p.dispatches[-1].sampling, cluster.d.dispatches[-1].sampling
    assert prefill == decode
    assert (prefill.temperature, prefill.top_p, prefill.top_k) == (0.5, 0.25, 3)
    assert (prefill.seed, prefill.max_tokens, prefill.min_tokens) == (9, 4, 2)
    assert prefill.stop_token_ids == (7,)


def test_limits_default_to_what_fits(cluster):
    complete(cluster, max_tokens=openai.NOT_GIVEN)
    assert cluster.p.dispatches[-1].sampling.max_tokens == 16
    answer = chat(cluster)
    limit = cluster.p.dispatches[-1].sampling.max_tokens
    assert limit == LIMITS.max_model_len - answer.usage.prompt_tokens
    chat(cluster, max_completion_tokens=5)
    assert cluster.p.dispatches[-1].sampling.max_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_cut_and_ends_both_legs(cluster, stream, ids):
    cluster.d.limit = len(ids) - 4
    before = TEXT[: TEXT.index("END")]
    if stream:
        chunks = list(chat(cluster, stop=["nowhere", "END"], stream=True))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        answer = chat(cluster, stop="END")
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (text, finish) == (before, "stop")
    room = cluster.d.dispatches[-1].room
    wait_for(lambda: cluster.d.aborts.get(room) is FailureReason.FINISHED)


def test_a_stop_string_in_the_first_token_is_known_to_prefill(cluster, tokenizer, ids):
    complete(cluster, stop=["T"])
    sent = cluster.p.dispatches[-1]
    assert ids[0] in sent.bootstrap_stop_ids
    assert all("T" in tokenizer.decode([i]) for i in sent.bootstrap_stop_ids)


def test_one_token_needs_no_decode_worker(cluster):
    complete(cluster, max_tokens=1)
    sent = cluster.p.dispatches[-1]
    assert sent.decode is None
    assert sent.room not in {d.room for d in cluster.d.dispatches}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 3}, "temperature", None),
        ({"temperature": "hot"}, "temperature", None),
        ({"top_p": 0}, "top_p", None),
        ({"n": 0}, "n", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"stop": ["a"] * 17}, "stop", None),
        ({"stop": ""}, "stop", None),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": []}, "prompt", None),
        ({"prompt": {"a": 1}}, "prompt", None),
        ({"prompt": [5, VOCAB_SIZE]}, "prompt", None),
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids", None),
        ({"seed": 1.5}, "seed", None),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens", None),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"nonsense": 1}, "nonsense", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"prompt": [5] * 300}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 300}, "prompt", "context_length_exceeded"),
    ],
)
def test_bad_input_is_400_and_no_worker_hears_of_it(cluster, fields, param, code):
    body = {"model": MODEL, "prompt": "x", **fields}
    answer = cluster.http.post("/v1/completions", json=body, headers={"X-Request-Id": "bad"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"]
    assert cluster.p.of("bad") == []


def test_what_is_neutral_or_ignored_is_taken(cluster):
    fields = {"logprobs": None, "echo": False, "presence_penalty": 0, "user": "me", "best_of": 1}
    assert complete(cluster, max_tokens=2, extra_body=fields).choices[0].finish_reason == "length"
    again = chat(cluster, max_tokens=2).choices[0].message.model_dump()
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, again]
    assert chat(cluster, messages=messages, max_tokens=2, tools=[], logprobs=False)


def test_other_refusals_have_the_error_object_too(cluster):
    with pytest.raises(openai.NotFoundError) as caught:
        chat(cluster, model="other")
    assert caught.value.code == "model_not_found"
    post = cluster.http.post
    typed = {"Content-Type": "application/json"}
    for answer in (
        post("/v1/completions", content=b"{", headers=typed),
        post("/v1/completions", json=[]),
    ):
        assert answer.status_code == 400
        assert "JSON" in answer.json()["error"]["message"]
    missing = post("/v1/completions", json={"model": MODEL}).json()["error"]
    assert missing["param"] == "prompt"
    for path, status in (("/v1/nowhere", 404), ("/v1/completions", 405)):
        answer = cluster.http.get(path)
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_models(cluster):
    (card,) = cluster.openai.models.list().data
    assert card.id == MODEL
    assert card.max_model_len == LIMITS.max_model_len
    assert cluster.openai.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        cluster.openai.models.retrieve("other")


def test_limits_of_the_pair_are_the_smaller_ones(make_cluster):
    cluster = make_cluster()
    cluster.add(Role.PREFILL)
    cluster.add(Role.DECODE, limits=msgspec.structs.replace(LIMITS, num_blocks=4))
    cluster.wait_ready()
    with pytest.raises(openai.BadRequestError, match="length is 64 tokens"):
        complete(cluster, prompt=[5] * 40, max_tokens=25)
    assert complete(cluster, prompt=[5] * 40, max_tokens=24)

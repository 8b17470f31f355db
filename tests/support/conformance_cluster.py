"""A pair that serves a tiny model over HTTP, asked every way; as fixtures and comparisons."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.conformance import MAX_TOKENS, Expected, Oracle
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.streams import Json, chunks_of, joined_chat, joined_completion
from tests.support.tiny_model import make_tiny_model

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

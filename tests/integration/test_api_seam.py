"""The seam between the engines, crossed on purpose: part in the bootstrap token, the rest on decode.

A scripted model emits given ids, so the bootstrap token ends wherever a test wants it to end.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.tokenizer import Tokenizer
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.scripted_model import Script, logprob_of
from tests.support.streams import Json, chunks_of, joined_chat, joined_completion
from tests.support.tiny_model import EOS_TOKEN_ID, make_tiny_model

PROMPT = [40, 41, 42, 43, 44]
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer(model_dir)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def http(model_dir: Path, script: Script) -> Iterator[httpx.Client]:
    with (
        EngineCluster(model_dir, script=script) as engines,
        HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):
        balancer.wait_ready()
        with httpx.Client(base_url=balancer.url, timeout=30) as client:
            yield client
        engines.wait_idle()


def bytes_to_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One id for each byte."""
    by_byte = {raw: i for i in range(300) if len(raw := tokenizer.bytes_of(i)) == 1}
    return [by_byte[bytes([value])] for value in data]


def answers(http: httpx.Client, tokenizer: Tokenizer, script: Script, ids, **fields) -> list[Json]:
    """The same output as a completion and as a chat, both also streamed and compared."""
    script.say(PROMPT, ids)
    script.say(tokenizer.apply_chat_template(MESSAGES), ids)
    choices = []
    for path, more, joined in (
        ("/v1/completions", {"prompt": PROMPT}, joined_completion),
        ("/v1/chat/completions", {"messages": MESSAGES}, joined_chat),
    ):
        body = {"model": MODEL_NAME, "max_tokens": 64, **more, **fields}
        whole = http.post(path, json=body).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = joined(chunks_of(http.post(path, json={**body, **options})))
        for answer in (whole, streamed):
            del answer["usage"]["prompt_tokens_details"]
        assert streamed == {k: v for k, v in whole.items() if k not in ("id", "created")}
        (choice,) = whole["choices"]
        choice["text"] = choice.get("text", choice.get("message", {}).get("content"))
        choice["num_tokens"] = whole["usage"]["completion_tokens"]
        choices.append(choice)
    return choices


TEXT = "né 👩‍👩‍👧 日本 END of it"


@pytest.mark.parametrize("num_first", range(1, 8))
def test_characters_split_anywhere(num_first, http, tokenizer, script) -> None:
    """Multi-byte characters of which `num_first` bytes are in front of the seam's first character."""
    data = ("é" * 4 + "👩‍👩‍👧").encode()[num_first - 1 :]
    ids = bytes_to_ids(tokenizer, data)
    expected = tokenizer.decode(ids)
    for choice in answers(http, tokenizer, script, ids):
        assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
        assert choice["num_tokens"] == len(ids) + 1


@pytest.mark.parametrize("stop", ["n", "né", "né 👩", " 👩‍👩‍👧 日", "END", "it"])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("first", ["n", "né", "né 👩"])
def test_stop_strings_split_anywhere(stop, include, first, http, tokenizer, script) -> None:
    """Each token is a byte. The bootstrap token is the last one of `first`; what is before is left out."""
    ids = bytes_to_ids(tokenizer, TEXT.encode())
    ids = ids[len(first.encode()) - 1 :]
    text = TEXT.encode()[len(first.encode()) - 1 :].decode(errors="replace")
    at = text.find(stop)
    fields = {"stop": ["nowhere", stop], "include_stop_str_in_output": include}
    for choice in answers(http, tokenizer, script, ids, **fields):
        if at < 0:
            assert choice["text"] == text
        else:
            assert choice["text"] == text[: at + include * len(stop)]
            assert choice["num_tokens"] == len(tokens_up_to(text, at + len(stop), TEXT, first))
        assert choice["finish_reason"] == "stop"


def tokens_up_to(text: str, end: int, whole: str, first: str) -> bytes:
    """The bytes, each a token, of the first `end` characters; one may be the rest of a character."""
    raw = whole.encode()[len(first.encode()) - 1 :]
    for num in range(len(raw) + 1):
        if raw[:num].decode(errors="replace").rstrip("\ufffd") == text[:end].rstrip("\ufffd"):
            return raw[:num]
    raise AssertionError(f"{end} characters of {text!r}")


def test_a_stop_string_that_the_bootstrap_token_only_begins_is_held_and_shown(
    http, tokenizer, script
) -> None:
    ids = tokenizer.encode("the", add_special_tokens=False)
    for choice in answers(http, tokenizer, script, ids, stop=["then", "theme"]):
        assert (choice["text"], choice["finish_reason"]) == ("the", "stop")


@pytest.mark.parametrize("seam", ["t", "th", "the"])
def test_held_text_keeps_its_log_probabilities(seam, http, tokenizer, script) -> None:
    ids = tokenizer.encode(seam, add_special_tokens=False)
    ids += bytes_to_ids(tokenizer, b"re")
    completion, chat = answers(
        http, tokenizer, script, ids, stop=["then", "theme"], return_token_ids=True
    )
    assert completion["token_ids"] == chat["token_ids"] == [*ids, EOS_TOKEN_ID]
    script.say(PROMPT, ids)
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 64, "stop": ["then", "theme"]}
    chunks = chunks_of(http.post("/v1/completions", json={**body, "logprobs": 2, "stream": True}))
    text = ""
    for chunk in chunks:
        (choice,) = chunk["choices"]
        shape = choice["logprobs"]
        for name, place in zip(shape["tokens"], shape["text_offset"], strict=True):
            if name != "<|im_end|>":
                assert (text + choice["text"]).startswith(name, place)
        text += choice["text"]
    got = [value for chunk in chunks for value in chunk["choices"][0]["logprobs"]["token_logprobs"]]
    assert got == [pytest.approx(logprob_of(i)) for i in (*ids, EOS_TOKEN_ID)]


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_the_limit_on_and_after_the_seam(num_tokens, http, tokenizer, script) -> None:
    ids = bytes_to_ids(tokenizer, "aé".encode())
    for choice in answers(http, tokenizer, script, ids, max_tokens=num_tokens):
        assert choice["text"] == tokenizer.decode(ids[:num_tokens])
        assert choice["finish_reason"] == "length"
        assert choice["num_tokens"] == num_tokens


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_stop_token_on_and_after_the_seam(place, http, tokenizer, script) -> None:
    ids = bytes_to_ids(tokenizer, b"abcdef")
    stop = {"stop_token_ids": [ids[place]]}
    for choice in answers(http, tokenizer, script, ids, **stop):
        assert (choice["text"], choice["finish_reason"]) == ("abcdef"[:place], "stop")
        assert choice["num_tokens"] == place + 1
    shown = {**stop, "include_stop_str_in_output": True}
    for choice in answers(http, tokenizer, script, ids, **shown):
        assert choice["text"] == "abcdef"[: place + 1]


def test_an_answer_that_ends_at_once(http, tokenizer, script) -> None:
    for choice in answers(http, tokenizer, script, []):
        assert (choice["text"], choice["finish_reason"], choice["num_tokens"]) == ("", "stop", 1)


def test_broken_bytes_are_replaced_as_in_a_whole_decode(http, tokenizer, script) -> None:
    for data in (b"\xff\xffa", b"\xe2\x82", b"\xf0\x9fa\xf0\x9f\x98\x80", b"\x80" * 40):
        ids = bytes_to_ids(tokenizer, data)
        for choice in answers(http, tokenizer, script, ids):
            assert choice["text"] == tokenizer.decode(ids) == data.decode(errors="replace")

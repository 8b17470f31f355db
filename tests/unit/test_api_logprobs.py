"""Log probabilities in clients' shapes; tokens that are no text; echoed prompts."""

import pytest

from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.api.answer_schema import PromptLogprob
from cluster.api.completion_choices import CompletionChoices
from cluster.api.echo import Echo, echoes
from cluster.api.logprobs import LEAST, TokenNames
from cluster.api.schema import CompletionRequest
from cluster.balancer.asks import Ask
from cluster.balancer.generation import ChoiceDelta
from cluster.balancer.stats import RequestStats
from cluster.balancer.text import TextRules, TextToken
from engine.tokenizer import Tokenizer
from tests.support.tiny_model import EOS_TOKEN_ID, make_tiny_model

LENGTH = FinishReason.LENGTH


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def names(tokenizer) -> TokenNames:
    return TokenNames(tokenizer, as_ids=False)


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_chat_names_parts_of_characters_by_their_bytes(tokenizer, names):
    first, second = ids_of(tokenizer, "é")
    (a,) = ids_of(tokenizer, "a")
    tokens = [
        TextToken(first, 0, True, TokenLogprobs(-0.5, ((a, -0.25), (first, -0.5)))),
        TextToken(second, 0, True, TokenLogprobs(-float("inf"))),
        TextToken(EOS_TOKEN_ID, 1, False, TokenLogprobs(-0.1)),
    ]
    assert names.chat(tokens, 1).model_dump() == {
        "content": [
            {
                "token": "\\xc3",
                "logprob": -0.5,
                "bytes": [0xC3],
                "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}],
            },
            {"token": "\\xa9", "logprob": LEAST, "bytes": [0xA9], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_completions_list_the_rivals_and_the_token_itself(tokenizer, names):
    first, _ = ids_of(tokenizer, "é")
    (a,) = ids_of(tokenizer, "a")
    score = TokenLogprobs(-3.0, ((first, -0.25), (EOS_TOKEN_ID, -0.5)))
    shape = names.completion([EOS_TOKEN_ID, a], [None, score], [0, 0], 1)
    assert shape.model_dump() == {
        "tokens": ["<|im_end|>", "a"],
        "token_logprobs": [None, -3.0],
        "top_logprobs": [None, {"bytes:\\xc3": -0.25, "a": -3.0}],
        "text_offset": [0, 0],
    }


def test_names_may_be_ids(tokenizer):
    names = TokenNames(tokenizer, as_ids=True)
    assert names.completion([5], [TokenLogprobs(-1.0)], [0], 0).tokens == ["token_id:5"]
    token = TextToken(5, 0, True, TokenLogprobs(-1.0))
    assert names.chat([token], 0).content[0].token == "token_id:5"


def test_prompt_scores_are_by_id_with_ranks(tokenizer, names):
    (a,), (b,) = ids_of(tokenizer, "a"), ids_of(tokenizer, "b")
    scores = [TokenLogprobs(-2.0, ((a, -0.5), (b, -2.0))), TokenLogprobs(-3.0, ((a, -0.5),))]
    assert names.prompt([a, b, b], scores, 2) == [
        None,
        {
            str(b): PromptLogprob(logprob=-2.0, rank=2, decoded_token="b"),
            str(a): PromptLogprob(logprob=-0.5, rank=1, decoded_token="a"),
        },
        {
            str(b): PromptLogprob(logprob=-3.0, rank=None, decoded_token="b"),
            str(a): PromptLogprob(logprob=-0.5, rank=1, decoded_token="a"),
        },
    ]


# --- echo ------------------------------------------------------------------------------------


def echo_of(tokenizer, prompt, *prompts, **fields) -> Echo:
    body = CompletionRequest.model_validate({"model": "m", "prompt": prompt, "echo": True})
    ask = Ask(
        request_id="r",
        prompts=prompts,
        sampling=SamplingParams(seed=0, max_tokens=1),
        rules=TextRules(**fields),
    )
    (echo,) = echoes(body, ask, tokenizer)
    return echo


def test_a_text_is_echoed_as_it_was_given(tokenizer):
    text = "a日<|im_start|>b"
    ids = tuple(ids_of(tokenizer, text))
    echo = echo_of(tokenizer, text, ids)
    assert echo.text == text
    assert echo.offsets == (0, 1, 1, 1, 2, 14)


def test_ids_are_echoed_as_they_decode(tokenizer):
    ids = (1, *ids_of(tokenizer, "né"))
    assert echo_of(tokenizer, list(ids), ids) == Echo("né", (0, 0, 1, 1))
    shown = echo_of(tokenizer, list(ids), ids, skip_special_tokens=False)
    assert shown == Echo("<|im_start|>né", (0, 12, 13, 13))


def test_without_echo_there_is_none(tokenizer):
    body = CompletionRequest.model_validate({"model": "m", "prompt": "x"})
    ask = Ask(request_id="r", prompts=((5,),), sampling=SamplingParams(seed=0, max_tokens=1))
    assert echoes(body, ask, tokenizer) == []


# --- choices ---------------------------------------------------------------------------------


def choices(names, *, echo: bool, n=1, **fields) -> CompletionChoices:
    body = CompletionRequest.model_validate(
        {"model": "m", "prompt": [[5, 6]], "echo": echo, "n": n, **fields}
    )
    ask = Ask(request_id="r", prompts=((5, 6),), sampling=SamplingParams(seed=0, max_tokens=1), n=n)
    echoed = [Echo("xy", (0, 1))] if echo else []
    return CompletionChoices(body, ask, names, echoed, lambda index: RequestStats(0.0))


def scored(token_id: int, offset: int, shown: bool = True) -> TextToken:
    return TextToken(token_id, offset, shown, TokenLogprobs(-float(token_id)))


DELTAS = [
    ChoiceDelta(0, "", None, (), (TokenLogprobs(-6.0),)),
    ChoiceDelta(0, "a", None, (scored(7, 0),)),
    ChoiceDelta(0, "", None),
    ChoiceDelta(0, "bc", LENGTH, (scored(8, 1), scored(9, 3, shown=False))),
]


@pytest.mark.parametrize("echo", [True, False])
def test_chunks_joined_are_the_whole_choice(names, echo):
    fields = {"logprobs": 0, "return_token_ids": True, "include_stats": True}
    made = choices(names, echo=echo, **fields)
    chunks = [chunk for delta in DELTAS if (chunk := made.next(delta)) is not None]
    assert len(chunks) == 2 + echo
    whole = choices(names, echo=echo, **fields).joined(DELTAS, 0)
    assert "".join(chunk.text for chunk in chunks) == whole.text == "xyabc"[2 * (not echo) :]
    assert [i for chunk in chunks for i in chunk.token_ids or ()] == whole.token_ids == [7, 8, 9]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(chunk.logprobs, name) for chunk in chunks if chunk.logprobs]
        assert [value for part in parts for value in part] == getattr(whole.logprobs, name)
    assert whole.logprobs.token_logprobs == [*([None, -6.0] * echo), -7.0, -8.0, -9.0]
    assert whole.logprobs.text_offset == ([0, 1, 2, 3, 5] if echo else [0, 1, 3])
    assert [chunk.finish_reason for chunk in chunks][-1] == whole.finish_reason == "length"
    assert [chunk.prompt_token_ids for chunk in chunks] == [[5, 6], *[None] * (len(chunks) - 1)]
    assert [chunk.stats is None for chunk in chunks] == [*[True] * (len(chunks) - 1), False]


def test_what_nobody_asked_for_is_not_there(names):
    whole = choices(names, echo=False).joined(DELTAS, 0)
    assert set(whole.model_dump()) == {"index", "text", "logprobs", "finish_reason"}

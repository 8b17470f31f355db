"""Sampling and text fields at their valid edges: over a pair and on one engine, streamed and not."""

import pytest

from tests.support import conformance_cluster
from tests.support.conformance import MAX_TOKENS, Case
from tests.support.conformance_cluster import MESSAGES, PROMPT, ask, check
from tests.support.streams import Json
from tests.support.tiny_model import EOS_TOKEN_ID, VOCAB_SIZE

model_dir = conformance_cluster.model_dir
oracle = conformance_cluster.oracle
http = conformance_cluster.http
prompt_ids = conformance_cluster.prompt_ids
chat_ids = conformance_cluster.chat_ids


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

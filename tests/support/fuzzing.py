"""Requests for the fuzzer: from the OpenAPI document, nearly right ones, and bytes that are no JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

JSON_TYPE = {"Content-Type": b"application/json"}
_OWN_PREFIXES = ("/v1/", "/tokenize", "/detokenize")


@dataclass(frozen=True, slots=True)
class Shot:
    """One HTTP request; `leave_after` is how many lines of a stream are read before leaving."""

    method: str
    path: str
    content: bytes = b""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    leave_after: int | None = None


def shots(document: dict[str, Any], model: str) -> st.SearchStrategy[Shot]:
    """All kinds, mixed."""
    return st.one_of(
        _described(document, model, GenerationMode.POSITIVE),
        _described(document, model, GenerationMode.NEGATIVE),
        _nearly_right(model),
        _nearly_right(model),
        _raw(),
    )


# --- what the document describes -------------------------------------------------------------


def _described(
    document: dict[str, Any], model: str, mode: GenerationMode
) -> st.SearchStrategy[Shot]:
    schema = schemathesis.openapi.from_dict(document)
    cases = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            # Nothing but a body can be wrong about a route of ours: the others have no parameters.
            if path.startswith(_OWN_PREFIXES) and "requestBody" in operation:
                operation = schema[path][method.upper()]
                cases.append(operation.as_strategy(generation_mode=mode))
    return st.builds(_of_case, st.one_of(cases), st.sampled_from([model, model, None]))


def _of_case(case: Any, model: str | None) -> Shot:
    """`model` in place of the generated one, which nobody serves."""
    body = case.body
    if isinstance(body, dict) and model is not None and isinstance(body.get("model"), str):
        body = {**body, "model": model}
    content = body if isinstance(body, bytes) else _encode(body)
    return Shot(case.method, case.formatted_path, content, JSON_TYPE)


def _encode(body: Any) -> bytes:
    try:
        return json.dumps(body).encode("utf-8", "surrogatepass")
    except TypeError:  # schemathesis marks an absent body by an object of its own
        return b""


# --- right but for a few fields --------------------------------------------------------------

_TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", " ", "\x00", "👩‍👩‍👧", "<|im_end|>", "e\u0301" * 5, "\ud800", "x" * 400, "{{ 1 }}"]
    ),
)
_NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.floats(-3, 3),
    st.sampled_from([0, 1, -1, 2**31, 2**63, -(2**63), 1e308, 1e-320, 10**30, float("nan"), True]),
)
_IDS = st.lists(st.integers(-1, 310), max_size=12)
_SCHEMAS = st.sampled_from(
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "string", "pattern": "(a+)+$"},
        {"$ref": "#"},
        {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"enum": [1, "b"]}}},
        {"type": "never"},
        {},
    ]
)
_ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.sampled_from(["f", "get_it", "a b", ""])},
                optional={"parameters": _SCHEMAS, "strict": st.booleans()},
            ),
        }
    ),
    max_size=2,
)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(0, 70),
    "n": st.integers(0, 5),
    "temperature": _NUMBERS,
    "top_p": _NUMBERS,
    "top_k": _NUMBERS,
    "min_p": _NUMBERS,
    "frequency_penalty": _NUMBERS,
    "presence_penalty": _NUMBERS,
    "repetition_penalty": _NUMBERS,
    "logit_bias": st.dictionaries(
        st.sampled_from(["0", "5", "299", "300", "x"]), _NUMBERS, max_size=3
    ),
    "seed": _NUMBERS,
    "min_tokens": st.integers(-1, 70),
    "stop": st.one_of(_TEXTS, st.lists(_TEXTS, max_size=5)),
    "stop_token_ids": _IDS,
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "ignore_eos": st.booleans(),
    "prompt_logprobs": st.integers(-1, 21),
    "return_token_ids": st.booleans(),
    "stream_options": st.dictionaries(
        st.sampled_from(["include_usage", "continuous_usage_stats", "resumable"]), st.booleans()
    ),
    "response_format": st.one_of(
        st.sampled_from([{"type": "text"}, {"type": "json_object"}, {"type": "odd"}]),
        st.builds(
            lambda s: {"type": "json_schema", "json_schema": {"name": "s", "schema": s}}, _SCHEMAS
        ),
    ),
    "guided_regex": st.sampled_from(["[0-9]{3}", "(", "a*", ".*"]),
    "guided_choice": st.lists(_TEXTS, max_size=3),
    "user": _TEXTS,
}
_COMPLETION_FIELDS = {
    **_FIELDS,
    "echo": st.booleans(),
    "logprobs": st.integers(-1, 21),
    "best_of": st.integers(0, 3),
    "suffix": _TEXTS,
}
_CHAT_FIELDS = {
    **_FIELDS,
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(-1, 21),
    "max_completion_tokens": st.integers(0, 70),
    "tools": _TOOLS,
    "tool_choice": st.sampled_from(
        ["auto", "none", "required", "odd", {"type": "function", "function": {"name": "f"}}]
    ),
    "chat_template_kwargs": st.dictionaries(_TEXTS, _ANYTHING, max_size=2),
}
_PROMPTS = st.one_of(
    _TEXTS,
    st.lists(_TEXTS, max_size=3),
    _IDS,
    st.lists(_IDS, max_size=3),
    _ANYTHING,
)
_MESSAGES = st.one_of(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "system", "assistant", "tool", "odd"]),
                "content": st.one_of(
                    _TEXTS, st.lists(st.builds(lambda t: {"type": "text", "text": t}, _TEXTS))
                ),
            }
        ),
        max_size=3,
    ),
    _ANYTHING,
)


def _nearly_right(model: str) -> st.SearchStrategy[Shot]:
    return st.one_of(
        _bodies("/v1/completions", model, {"prompt": _PROMPTS}, _COMPLETION_FIELDS),
        _bodies("/v1/chat/completions", model, {"messages": _MESSAGES}, _CHAT_FIELDS),
    )


@st.composite
def _bodies(
    draw: st.DrawFn,
    path: str,
    model: str,
    needed: dict[str, st.SearchStrategy[Any]],
    fields: dict[str, st.SearchStrategy[Any]],
) -> Shot:
    right = {"prompt": "Hello", "messages": [{"role": "user", "content": "Hello"}]}
    body: dict[str, Any] = {"model": model, "max_tokens": draw(st.integers(1, 24))}
    for name, values in needed.items():
        body[name] = right[name] if draw(st.booleans()) else draw(values)
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True)):
        body[name] = draw(fields[name])
    if draw(st.integers(0, 5)) == 0:
        body[draw(st.sampled_from(sorted(body)))] = draw(_ANYTHING)
    leave_after = None
    if draw(st.booleans()):
        body["stream"] = True
        leave_after = draw(st.none() | st.integers(0, 6))
    return Shot("POST", path, _encode(body), JSON_TYPE, leave_after)


# --- no JSON, no route -----------------------------------------------------------------------


def _raw() -> st.SearchStrategy[Shot]:
    paths = st.sampled_from(
        ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/none", "/"]
    )
    contents = st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [
                b"[" * 30_000,
                b'{"a":' * 30_000,
                b'{"model": "tiny", "prompt": "\xff\xfe"}',
                b'{"model": "tiny", "prompt": "\\ud800"}',
                b'{"model": "tiny", "prompt": NaN}',
                b'{"model": "tiny", "model": 1, "prompt": [1e5000]}',
                b'{"model": "tiny", "prompt": ' + b"9" * 5000 + b"}",
            ]
        ),
    )
    types = st.sampled_from(
        [
            JSON_TYPE,
            {},
            {"Content-Type": b"text/plain"},
            {"Content-Type": b"application/json; q=\xff"},
        ]
    )
    methods = st.sampled_from(["POST", "POST", "POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
    return st.builds(Shot, methods, paths, contents, types)

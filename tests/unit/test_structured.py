"""Fields that constrain an answer become one grammar, within bounds, or a clear refusal."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from bootstrap.sampling import GrammarKind, GrammarSpec
from cluster.api.errors import ApiError
from cluster.api.structured import (
    MAX_DEPTH,
    StructuredFields,
    check_grammar,
    requested_grammar,
)
from cluster.balancer import grammar_checks
from cluster.balancer.grammar_checks import GrammarChecks
from tests.support.tiny_model import make_tiny_model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def grammar(**fields):
    return requested_grammar(StructuredFields.model_validate(fields))[0]


def json_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, (GrammarKind.JSON_OBJECT, "")),
        ({"structured_outputs": {"json_object": True}}, (GrammarKind.JSON_OBJECT, "")),
        ({"guided_regex": "a+"}, (GrammarKind.REGEX, "a+")),
        ({"structured_outputs": {"regex": "a+"}}, (GrammarKind.REGEX, "a+")),
        ({"guided_choice": ["a", "é"]}, (GrammarKind.CHOICE, '["a", "\\u00e9"]')),
        ({"structured_outputs": {"choice": ["a"]}}, (GrammarKind.CHOICE, '["a"]')),
        ({"guided_grammar": 'start: "a"'}, (GrammarKind.EBNF, 'start: "a"')),
        ({"guided_json": SCHEMA}, (GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        ({"guided_json": json.dumps(SCHEMA)}, (GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": SCHEMA}}, (GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        (
            {"response_format": json_schema(SCHEMA, strict=True)},
            (GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
        ),
    ],
)
def test_each_field_has_its_grammar(fields, expected):
    assert grammar(**fields) == (None if expected is None else GrammarSpec(*expected))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": json_schema(SCHEMA) | {"more": 1}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        {"structured_outputs": {"structural_tag": "x"}},
        {"guided_choice": []},
        {"guided_choice": [""]},
        {"guided_regex": ""},
        {"guided_regex": "\ud800"},
        {"guided_json": 5},
    ],
)
def test_shapes_that_are_refused(fields):
    with pytest.raises(ValidationError):
        StructuredFields.model_validate(fields)


DEEP = {}
for _ in range(MAX_DEPTH):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"guided_json": DEEP}, "deeper"),
        ({"guided_json": {"enum": ["x" * 70_000]}}, "characters"),
        ({"guided_json": {"enum": list(range(30_000))}}, "parts"),
        ({"guided_json": "[" * 60_000}, "not JSON"),
        ({"guided_json": "5"}, "object"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "Only one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "Only one"),
    ],
)
def test_bounds(fields, problem):
    with pytest.raises(ApiError, match=problem) as caught:
        grammar(**fields)
    assert caught.value.status == 400
    assert caught.value.param in fields


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("checks"))
    made = GrammarChecks(folder / "tokenizer.json")
    yield made
    made.close()


RULES = "\n".join(f"r{i}: r{i + 1}" for i in range(5000))


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "(a"},
        {"guided_grammar": f'start: r0\n{RULES}\nr5000: "a"'},  # ends the library's stack
        {"guided_grammar": "start: unknown"},
        {"guided_grammar": "root ::= ("},
        {"guided_json": {"type": "objec"}},
        {"guided_json": {"$ref": "#/nowhere"}},
        {"guided_json": {"type": "array", "uniqueItems": True}},
        {"response_format": json_schema({"type": "array", "uniqueItems": True}, strict=True)},
    ],
)
def test_what_is_no_grammar_is_refused(checks, fields):
    spec, param = requested_grammar(StructuredFields.model_validate(fields))
    with pytest.raises(ApiError, match=f"Invalid value for '{param}'") as caught:
        asyncio.run(check_grammar(checks, spec, param))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "(a|b)+/"},
        {"guided_choice": ["a", 'é\n"\\']},
        {"guided_grammar": 'root ::= "a"'},
        {"guided_json": SCHEMA},
        {"response_format": {"type": "json_object"}},
        {"response_format": json_schema({"type": "array", "uniqueItems": True})},
    ],
)
def test_what_is_fine_passes(checks, fields):
    spec, param = requested_grammar(StructuredFields.model_validate(fields))
    asyncio.run(check_grammar(checks, spec, param))


def test_what_cannot_be_checked_now_is_no_fault_of_the_client(checks, monkeypatch):
    monkeypatch.setattr(grammar_checks, "MAX_WAITING", 0)
    spec, param = requested_grammar(StructuredFields.model_validate({"guided_regex": "a"}))
    with pytest.raises(ApiError, match="too many grammars wait") as caught:
        asyncio.run(check_grammar(checks, spec, param))
    assert caught.value.status == 503


def test_what_is_wrong_is_told_without_the_machinery(checks):
    schema = '{"$ref": "#/nowhere"}'
    for spec, param in (
        (GrammarSpec(GrammarKind.JSON_SCHEMA, schema), "response_format"),
        (GrammarSpec(GrammarKind.EBNF, f"start: a\na: %json {schema}"), "tools"),
    ):
        with pytest.raises(ApiError, match="Pointer '/nowhere' does not exist") as caught:
            asyncio.run(check_grammar(checks, spec, param))
        assert "%json" not in str(caught.value)
        assert "2(" not in str(caught.value)
    spec = GrammarSpec(GrammarKind.EBNF, "start: a\na: nowhere")
    with pytest.raises(ApiError, match=r"2\("):
        asyncio.run(check_grammar(checks, spec, "guided_grammar"))


def test_too_many_at_once_is_503(checks, monkeypatch):
    monkeypatch.setattr("cluster.balancer.grammar_checks.MAX_WAITING", 0)
    with pytest.raises(ApiError) as caught:
        asyncio.run(check_grammar(checks, GrammarSpec(GrammarKind.REGEX, "a"), "guided_regex"))
    assert caught.value.status == 503

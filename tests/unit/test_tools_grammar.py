"""Grammars of tool calls accept what the parser of the same family reads, and nothing else."""

import pytest
from llguidance import LLMatcher, LLTokenizer

from bootstrap.sampling import GrammarKind, GrammarSpec
from cluster.api.errors import ApiError
from cluster.api.tools.definitions import Tool, ToolFields
from cluster.api.tools.formats import HERMES, LLAMA3
from cluster.api.tools.grammar import after_thinking
from cluster.api.tools.parser import CallArguments, CallBegan, ToolCallParser
from cluster.api.tools.plan import plan_tools
from engine.grammar import compilable_text
from tests.support.tiny_model import make_tiny_model


def tool(name, parameters=None, strict=None):
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


NUMBER = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/number"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"number": {"type": "integer"}},
}
TOOLS = [tool("f", NUMBER), tool("none")]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
WRONG = CALL.replace("1", '"x"')
OTHER = '<tool_call>\n{"name": "none", "arguments": {}}\n</tool_call>'
LLAMA_CALL = '{"name": "f", "parameters": {"a": 1}}'


@pytest.fixture(scope="module")
def matches(tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("grammar"))
    tokenizer = LLTokenizer(str(folder / "tokenizer.json"))

    def whole(spec: GrammarSpec, text: str) -> bool:
        matcher = LLMatcher(tokenizer, compilable_text(spec))
        assert not matcher.is_error(), matcher.get_error()
        ids = tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return whole


def plan(format=HERMES, **fields):
    return plan_tools(ToolFields.model_validate({"tools": TOOLS, **fields}), format)


def grammar(format=HERMES, content=None, **fields):
    return plan(format, **fields).grammar(content)


def test_required_is_calls_and_nothing_else(matches):
    spec = grammar(tool_choice="required")
    assert matches(spec, CALL)
    assert matches(spec, f"{CALL}\n{OTHER}")
    for text in ("", "Hi.", f"{CALL} and", f"Hi {CALL}", WRONG, CALL.replace('"f"', '"g"')):
        assert not matches(spec, text)
    one = grammar(tool_choice="required", parallel_tool_calls=False)
    assert matches(one, CALL)
    assert not matches(one, f"{CALL}\n{CALL}")


def test_arguments_are_written_as_models_write_them(matches):
    two = {"type": "object", "properties": {"a": {}, "b": {}}, "x-guidance": 5}
    spec = grammar(tools=[tool("f", two)], tool_choice="required")
    assert matches(spec, CALL.replace('{"a": 1}', '{"a": 1, "b": [1, 2]}'))
    assert not matches(spec, CALL.replace('{"a": 1}', '{"a":  1}'))


def test_a_named_function_is_called_once(matches):
    spec = grammar(tool_choice={"type": "function", "function": {"name": "none"}})
    assert matches(spec, OTHER)
    assert not matches(spec, CALL)
    assert not matches(spec, f"{OTHER}\n{OTHER}")
    assert not matches(spec, OTHER.replace("{}", '{"x": 1}'))


def test_llama(matches):
    spec = grammar(LLAMA3, tool_choice="required")
    assert matches(spec, LLAMA_CALL)
    assert matches(spec, f"{LLAMA_CALL}; {LLAMA_CALL}")
    assert not matches(spec, LLAMA_CALL.replace("1", "true"))
    strict = grammar(LLAMA3, tools=[tool("f", NUMBER, strict=True)])
    for text in (LLAMA_CALL, "", "Hi {}", "5"):
        assert matches(strict, text)
    assert not matches(strict, LLAMA_CALL.replace("1", "true"))


def test_auto_is_free_unless_a_tool_is_strict(matches):
    assert grammar() is None
    assert grammar(tool_choice="auto") is None
    spec = grammar(tools=[tool("f", NUMBER, strict=True), tool("lax", NUMBER)])
    for text in ("", "Hi.", CALL, f"Well, {CALL}\n{CALL} and", CALL.replace('"f"', '"lax"')):
        assert matches(spec, text)
    assert matches(spec, WRONG.replace('"f"', '"lax"'))
    for text in (WRONG, f"Well, {WRONG}", f"{CALL}{WRONG}", "Hi <tool_call>"):
        assert not matches(spec, text)


def test_content_of_a_format_or_calls(matches):
    for content, fine in (
        (GrammarSpec(GrammarKind.JSON_OBJECT, ""), '{"b": 2}'),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "array"}'), "[]"),
        (GrammarSpec(GrammarKind.REGEX, r"a/\/\\b"), r"a//\b"),
        (GrammarSpec(GrammarKind.CHOICE, '["yes/", "\\u00e9"]'), "é"),
        (GrammarSpec(GrammarKind.EBNF, 'start: A | "}"\nA: /[{]/'), "{"),
    ):
        spec = grammar(content=content)
        assert matches(spec, fine)
        assert matches(spec, CALL)
        assert not matches(spec, "Hi.")
        assert not matches(spec, WRONG)
        thought = after_thinking(content, opened=False)
        assert matches(thought, fine)
        assert matches(thought, f"<think>\nHm <b </think>\n\n{fine}")
        assert not matches(thought, f"Hm</think>{fine}")
        opened = after_thinking(content, opened=True)
        assert matches(opened, f"Hm</think>{fine}")
        assert not matches(opened, fine)


def test_exotic_keywords_are_passed_over_unless_strict(matches):
    exotic = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    spec = grammar(tools=[tool("f", exotic)], tool_choice="required")
    assert matches(spec, CALL.replace("1", "[1, 1]"))
    strict = grammar(tools=[tool("f", exotic, strict=True)], tool_choice="required")
    assert "Unimplemented keys" in LLMatcher.validate_grammar(compilable_text(strict))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool("f"), tool("f")]}, "tools"),
        ({"tools": [tool("f", {"type": "string"})]}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_refusals(fields, param):
    with pytest.raises(ApiError) as caught:
        plan(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_too_much_is_refused():
    large = {"type": "object", "properties": {"a": {"enum": ["x" * 20_000]}}}
    wanted = plan(tools=[tool(f"f{i}", large) for i in range(6)], tool_choice="required")
    with pytest.raises(ApiError, match="too long"):
        wanted.grammar(None)


def test_no_tools_no_plan():
    assert plan(tool_choice="none") is None
    assert plan(tools=None) is None
    assert plan(None, tools=[]) is None
    with pytest.raises(ApiError, match="not supported"):
        plan(None)


def parsed(text, format):
    parser = ToolCallParser(format, frozenset({"f", "none"}))
    return parser.push(text) + parser.finish()


def test_the_parser_reads_what_the_grammar_makes():
    assert parsed(f"{CALL}\n{OTHER}", HERMES) == [
        CallBegan(0, "f"),
        CallArguments(0, '{"a": 1}'),
        CallBegan(1, "none"),
        CallArguments(1, "{}"),
    ]
    assert parsed(LLAMA_CALL, LLAMA3) == [CallBegan(0, "f"), CallArguments(0, '{"a": 1}')]


@pytest.mark.parametrize(
    ("parameters", "extra"),
    [
        (None, False),
        ({"properties": {"a": {}}}, False),
        ({"additionalProperties": True}, True),
        ({"allOf": [{"properties": {"a": {}}}]}, None),
    ],
)
def test_arguments_that_nobody_named(parameters, extra):
    schema = Tool.model_validate(tool("f", parameters)).function.schema_of_arguments
    assert schema["type"] == "object"
    assert schema.get("additionalProperties") is extra

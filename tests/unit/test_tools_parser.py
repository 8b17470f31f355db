"""Text becomes content and calls; how it was cut into pieces never shows."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.tools.formats import HERMES, LLAMA3
from cluster.api.tools.parser import CallArguments, CallBegan, Content, ToolCallParser

NAMES = frozenset({"f", "get_weather"})


def parse(pieces, format=HERMES):
    """(content, [(name, arguments)])"""
    parser = ToolCallParser(format, NAMES)
    content, calls = "", []
    for piece in [p for text in pieces for p in parser.push(text)] + parser.finish():
        if isinstance(piece, Content):
            assert piece.text
            content += piece.text
        elif isinstance(piece, CallBegan):
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        else:
            assert isinstance(piece, CallArguments)
            assert piece.index == len(calls) - 1
            assert piece.text
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return content, calls


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>'
F = ("f", '{"a": [1, "}"]}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, ("", [F])),
        (f"Let me see.\n{CALL}\n", ("Let me see.", [F])),
        (f"\n\n{CALL}\n{CALL}", ("", [F, F])),
        (f"{CALL} and then {CALL}", ("and then", [F, F])),
        ('<tool_call>[{"name": "f"}, {"name": "f"}]</tool_call>', ("", [("f", "{}")] * 2)),
        ('<tool_call>{"name": "f", "arguments": null}', ("", [("f", "{}")])),
        ('<tool_call>{"arguments": {"b": 1}, "name": "f"}', ("", [("f", '{"b": 1}')])),
        ('<tool_call>{"id": [1], "name": "f", "arguments": {}}', ("", [("f", "{}")])),
        (r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}', ("", [("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "arguments": {"a": 1', ("", [("f", '{"a": 1')])),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', ("", [("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "arguments": {"a</tool_call>', ("", [("f", '{"a</tool_call>')])),
        ('<tool_call>{"name": "f", "arguments": {"a": <x', ("<x", [("f", '{"a": ')])),
        ('<tool_call>{"name":"f","arguments":{}}</tool_cal', ("", [("f", "{}")])),
        (r'<tool_call>{"n\u0061me":"\u0066"}', ("", [("f", "{}")])),
    ],
)
def test_calls(text, expected):
    assert parse([text]) == expected
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Plain text, nothing more. \n",
        "<tool_call",
        "<tool_call>",
        "<tool_call>\n not JSON </tool_call>",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f" "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": 5}',
        '<tool_call>{"name": "f", ',
        '<tool_call>{"arguments": {}}',
        '<tool_call>{"arguments": {}, "arguments": {}, "name": "f"}',
        r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud800\"}"}',
        '<tool_call>{"name": "f", "arguments": "' + "[" * 100_000 + '"}',
        '{"name": "f", "arguments": {}}',
        "a < b, <tool>, </tool_call>",
        " \n ",
    ],
)
def test_what_only_looks_like_a_call_is_content(text):
    assert parse([text]) == (text, [])
    assert parse(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', ("", [("f", '{"a": 1}')])),
        (' {"name": "f"}; {"name": "f"}', ("", [("f", "{}")] * 2)),
        ('<|python_tag|>{"name": "f"}<|python_tag|>{"name": "f"}', ("", [("f", "{}")] * 2)),
        ('I call <|python_tag|>{"name": "f"}', ("I call", [("f", "{}")])),
        ('{"name": "John", "age": 5}', ('{"name": "John", "age": 5}', [])),
        ('{"a": {"name": "f"}}', ('{"a": {"name": "f"}}', [])),
        ('So {"name": "f"}', ('So {"name": "f"}', [])),
        ('{"name": "f"} is it', ("is it", [("f", "{}")])),
    ],
)
def test_llama(text, expected):
    assert parse([text], LLAMA3) == expected
    assert parse(text, LLAMA3) == expected


def test_arguments_stream_as_they_come():
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push('Hm. <tool_call>{"name": "f", "arg') == [Content("Hm.")]
    assert parser.push('uments": ') == []
    assert parser.push('{"a"') == [CallBegan(0, "f"), CallArguments(0, '{"a"')]
    assert parser.push(": 1") == [CallArguments(0, ": 1")]
    assert parser.push("}}</tool") == [CallArguments(0, "}")]
    assert parser.push("_call>\n") == []
    assert parser.finish() == []


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<tool", "_call>", "<|python_tag|>", "{", "}", "[", "]", ",",
        '"name"', ":", '"f"', '"g"', '"arguments"', '"parameters"', "null", '"', "\\", " ", "\n",
        "text", ";", '{"name": "f", "arguments": {', '{"name": "f"}', "é", "1",
        r'"{\"x\": 1}"', CALL,
    ]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.sampled_from([HERMES, LLAMA3]), st.data())
def test_pieces_do_not_matter(text, format, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse([text], format)
    assert parse(pieces, format) == whole
    assert parse(text, format) == whole
    if not whole[1]:
        assert whole[0] == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.lists(st.dictionaries(st.text(), json_values, max_size=4), min_size=1, max_size=3)


@given(ARGUMENTS, st.sampled_from([HERMES, LLAMA3]), st.booleans(), st.data())
def test_every_well_formed_call_is_found(arguments, format, ascii_only, data):
    texts = [json.dumps(value, ensure_ascii=ascii_only) for value in arguments]
    calls = [f'{{"name": "f", "{format.arguments_key}": {text}}}' for text in texts]
    if format is HERMES:
        calls = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    text = format.separator.join(calls)
    cut = data.draw(st.integers(0, len(text)))
    assert parse([text[:cut], text[cut:]], format) == ("", [("f", t) for t in texts])

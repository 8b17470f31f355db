"""Grammars of whole answers: tool calls that a request demands, around them thinking and text.

The language is llguidance's Lark: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance.gbnf_to_lark import any_to_lark

from bootstrap.sampling import GrammarKind, GrammarSpec
from cluster.api.errors import ApiError
from cluster.api.reasoning import BEGIN, END
from cluster.api.structured import bounded_schema, lenient, terse
from cluster.api.tools.definitions import Tool
from cluster.api.tools.formats import ToolFormat
from engine.grammar import MAX_TEXT_CHARS

_NEWLINE = r'"\n"'


def calls_only(format: ToolFormat, tools: Sequence[Tool], *, parallel: bool) -> GrammarSpec:
    """One call of one of `tools`, or where `parallel` any number from one on."""
    return _spec([f"start: {_series(format, parallel)}", *_call_rules(format, tools, exact=True)])


def calls_or(
    content: GrammarSpec, format: ToolFormat, tools: Sequence[Tool], *, parallel: bool
) -> GrammarSpec:
    """Calls as above, or else what matches `content`."""
    return _spec(
        [
            f"start: {_series(format, parallel)} | content",
            f"content: {_body(content)}",
            *_call_rules(format, tools, exact=True),
        ]
    )


def calls_in_text(format: ToolFormat, tools: Sequence[Tool], *, parallel: bool) -> GrammarSpec:
    """Free text that may hold calls; those of strict tools match their schema."""
    rules = _call_rules(format, tools, exact=False)
    if format.bare:
        plain = r"plain: /([^{ \t\r\n](?s:.*))?/"
        return _spec([f"start: {_series(format, parallel)} | plain", plain, *rules])
    marker = re.escape(format.begin)
    return _spec(
        [
            f"start: plain | said{'+' if parallel else ''} plain",
            f"said: lead {_NEWLINE} body",
            f"lead[lazy]: /(?s:.*){marker}/",
            "plain: PLAIN?",
            f"PLAIN: /(?s:.+)/ & ~/(?s:.*){marker}(?s:.*)/",
            *rules,
        ]
    )


def after_thinking(grammar: GrammarSpec, *, opened: bool) -> GrammarSpec:
    """`grammar` for what follows the thinking; `opened` when the prompt has begun it already."""
    thinking = f"/{'' if opened else BEGIN}(?s:.*)" + END.replace("/", r"\/") + "/"
    prefix = "thinking SPACE?" if opened else "(thinking SPACE?)?"
    return _spec(
        [
            f"start: {prefix} answer",
            f"thinking[lazy]: {thinking}",
            r"SPACE: /\s+/",
            f"answer: {_body(grammar)}",
        ]
    )


def _series(format: ToolFormat, parallel: bool) -> str:
    return f"call ({json.dumps(format.separator)} call)*" if parallel else "call"


def _call_rules(format: ToolFormat, tools: Sequence[Tool], *, exact: bool) -> list[str]:
    """`call` with its markers, `body` without the first; `exact` holds all tools to their schema."""
    call = f"{json.dumps(format.begin)} {_NEWLINE} body" if format.end else "body"
    end = json.dumps(f"\n{format.end}") if format.end else ""
    rules = [
        f"call: {call}",
        f"body: ({' | '.join(f'tool_{i}' for i in range(len(tools)))}) {end}",
    ]
    for i, tool in enumerate(tools):
        function = tool.function
        schema: Mapping[str, Any] = {"type": "object"}
        if exact or function.strict:
            schema = function.schema_of_arguments
        if not function.strict:
            schema = lenient(schema)
        head = f'{{"name": {json.dumps(function.name)}, "{format.arguments_key}": '
        rules.append(f'tool_{i}: {json.dumps(head)} arguments_{i} "}}"')
        rules.append(f"arguments_{i}: %json {bounded_schema(terse(schema), 'tools')}")
    return rules


def _body(grammar: GrammarSpec) -> str:
    """The right side of a rule for what `grammar` matches."""
    if grammar.kind is GrammarKind.JSON_OBJECT:
        return '%json {"type": "object"}'
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return f"%json {grammar.text}"
    if grammar.kind is GrammarKind.CHOICE:
        return " | ".join(json.dumps(t, ensure_ascii=False) for t in json.loads(grammar.text))
    if grammar.kind is GrammarKind.REGEX:
        return f"/{_delimited(grammar.text)}/"
    return f"%lark {{\n{_lark(grammar.text)}\n}}"


def _lark(text: str) -> str:
    """Lark as it is, GBNF translated."""
    try:
        return str(any_to_lark(text))
    except Exception as error:  # a converter of few checks, over text of any kind
        raise ApiError(400, f"The grammar is neither Lark nor GBNF: {error}") from error


def _delimited(regex: str) -> str:
    """A regex as it is written between slashes."""
    escaped = ""
    pairs = iter(regex)
    for char in pairs:
        if char == "\\":
            escaped += char + next(pairs, "")
        else:
            escaped += {"/": r"\/", "\n": r"\n"}.get(char, char)
    return escaped


def _spec(rules: Sequence[str]) -> GrammarSpec:
    text = "\n".join(rules) + "\n"
    if len(text) > MAX_TEXT_CHARS:
        raise ApiError(
            400, "The tools and the format of the answer are too long together.", param="tools"
        )
    return GrammarSpec(GrammarKind.EBNF, text)

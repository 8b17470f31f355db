"""What a grammar may be, and how a GrammarSpec becomes llguidance's text. No tensors, no tokenizer.

llguidance bounds its work per token by fuel, but not the time nor the stack of a compilation, so no text
is compiled in a serving process before `engine.grammar_probe` has seen it compile in a child.
"""

import json
from json import JSONDecodeError

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from bootstrap.errors import RemoteFault
from bootstrap.sampling import GrammarKind, GrammarSpec

MAX_TEXT_CHARS = 1 << 16
MAX_CHOICES = 4096
_WHITESPACE = r"[ \t\r\n]{0,32}"
_MAX_LEXER_STATES = 20_000  # 1 to 2 kB each, for as long as the grammar is kept


class BadGrammar(RemoteFault):
    """A grammar that cannot be used; the message is for who wrote it."""


def parser_limits() -> LLParserLimits:
    """Bounds on a grammar's size and on the work of each token's mask, about 20 ms."""
    return LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)


def compilable_text(spec: GrammarSpec) -> str:
    """llguidance's text of `spec`; raises BadGrammar for what is too long or has a wrong shape.

    A schema's every keyword must be one that can be enforced. A grammar is Lark or GBNF.
    """
    if len(spec.text) > MAX_TEXT_CHARS:
        raise BadGrammar(f"{len(spec.text)} characters; allowed are {MAX_TEXT_CHARS}")
    if spec.kind is GrammarKind.JSON_OBJECT:
        return _from_schema({"type": "object"})
    if spec.kind is GrammarKind.JSON_SCHEMA:
        schema = _json(spec.text)
        if not isinstance(schema, dict):
            raise BadGrammar("a schema must be a JSON object")
        return _from_schema(schema)
    if spec.kind is GrammarKind.REGEX:
        return str(LLMatcher.grammar_from_regex(spec.text))
    if spec.kind is GrammarKind.CHOICE:
        return str(LLMatcher.grammar_from_regex("|".join(map(_literal, _choices(spec.text)))))
    return _from_ebnf(spec.text)


def _from_schema(schema: dict[str, object]) -> str:
    """White space is bounded unless the schema says how it is written: weak models go on with it."""
    how = schema.get("x-guidance", {})
    if isinstance(how, dict):
        schema = {**schema, "x-guidance": {"whitespace_pattern": _WHITESPACE, **how}}
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (JSONDecodeError, RecursionError) as error:
        raise BadGrammar(f"not JSON: {error}") from error


def _choices(text: str) -> list[str]:
    choices = _json(text)
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        raise BadGrammar(f"choices must be a list of 1 to {MAX_CHOICES} strings")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise BadGrammar("choices must be strings that are not empty")
    return choices


def _literal(text: str) -> str:
    """A regex of the text itself."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _from_ebnf(text: str) -> str:
    try:
        return str(LLMatcher.grammar_from_lark(any_to_lark(text)))
    except Exception as error:  # the library raises nothing narrower
        raise BadGrammar(str(error)) from error

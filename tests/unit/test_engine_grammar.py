"""From what a client wrote to llguidance's text, without compiling it."""

import json
import subprocess
import sys

import pytest

from bootstrap.sampling import GrammarKind, GrammarSpec
from engine.grammar import MAX_TEXT_CHARS, BadGrammar, compilable_text

_K = GrammarKind


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (_K.JSON_OBJECT, ""),
        (_K.JSON_SCHEMA, '{"type": "object"}'),
        (_K.REGEX, "[0-9]+"),
        (_K.CHOICE, json.dumps(["a", 'b"\n/', "é☃😀", "\x01"])),
        (_K.EBNF, 'start: "a" | "b"'),
        (_K.EBNF, 'root ::= "a" | "b"'),
    ],
)
def test_every_kind_becomes_text(kind: GrammarKind, text: str) -> None:
    assert compilable_text(GrammarSpec(kind, text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (_K.JSON_SCHEMA, "[1]"),
        (_K.JSON_SCHEMA, "nothing"),
        (_K.JSON_SCHEMA, "[" * 50_000),
        (_K.CHOICE, "nothing"),
        (_K.CHOICE, "[]"),
        (_K.CHOICE, "[1]"),
        (_K.CHOICE, '["a", ""]'),
        (_K.CHOICE, json.dumps(["a"] * 5000)),
        (_K.EBNF, "root ::= ("),
        (_K.EBNF, "root ::= missing"),
        (_K.REGEX, "a" * (MAX_TEXT_CHARS + 1)),
    ],
)
def test_what_has_a_wrong_shape_is_refused(kind: GrammarKind, text: str) -> None:
    with pytest.raises(BadGrammar):
        compilable_text(GrammarSpec(kind, text))


def test_checking_grammars_needs_no_tensors() -> None:
    """The balancer imports it."""
    code = "import engine.grammar_probe, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

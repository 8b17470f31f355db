"""Thinking apart from the answer, whatever the pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.api.reasoning import ReasoningSplitter, opens_reasoning, splits_reasoning


def split(pieces, opened=False):
    splitter = ReasoningSplitter(opened=opened)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(r for r, _ in parts), "".join(c for _, c in parts)


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nTwo and two.\n</think>\n\nFour.", False, ("Two and two.", "Four.")),
        ("Two and two.\n</think>\n\nFour.", True, ("Two and two.", "Four.")),
        ("\n<think>a</think>b</think>c", False, ("a", "b</think>c")),
        ("<think></think>Four.", False, ("", "Four.")),
        ("<think>never ends </thi", False, ("never ends", "")),
        ("<think>a < b </t> </think>c", False, ("a < b </t>", "c")),
        ("  plain <think>a</think> text \n", False, ("", "  plain <think>a</think> text \n")),
        ("<thin", False, ("", "<thin")),
        ("<thinking>a", False, ("", "<thinking>a")),
        (" \n", False, ("", " \n")),
        ("", True, ("", "")),
    ],
)
def test_split(text, opened, expected):
    assert split([text], opened) == expected
    assert split(text, opened) == expected


ALPHABET = st.sampled_from(["<think>", "</think>", "<thi", "</", "nk>", " ", "\n", "a", "é", "<"])


@given(st.lists(ALPHABET, max_size=12).map("".join), st.booleans(), st.data())
def test_pieces_do_not_matter(text, opened, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, opened) == split([text], opened)


@given(st.text(alphabet="ab<> \n/think", max_size=30))
def test_without_a_marker_nothing_changes(text):
    if not text.lstrip().startswith("<think>"):
        assert split([text]) == ("", text)


def test_who_splits():
    assert splits_reasoning("auto", "{{ x }}</think>")
    assert not splits_reasoning("auto", "{{ x }}")
    assert not splits_reasoning("auto", None)
    assert not splits_reasoning("none", "</think>")
    assert splits_reasoning("qwen3", None)
    assert opens_reasoning("<|assistant|><think>\n")
    assert not opens_reasoning("<|assistant|>\n")

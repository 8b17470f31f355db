"""Thinking, then text and calls: pieces of a stream add up to the answer taken whole."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.api.shaper import CallOpened, Reasoning, ShapeRules
from cluster.api.tools.definitions import ToolFields
from cluster.api.tools.formats import HERMES
from cluster.api.tools.parser import CallArguments, Content
from cluster.api.tools.plan import plan_tools

TOOL = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def rules(thinking=False, **fields):
    plan = plan_tools(ToolFields.model_validate({"tools": [TOOL], **fields}), HERMES)
    return ShapeRules(thinking, plan)


def joined(pieces):
    """(reasoning, content, [(name, arguments)]), and the calls' ids."""
    reasoning, content, calls, ids = "", "", [], []
    for piece in pieces:
        if isinstance(piece, Content):
            content += piece.text
        elif isinstance(piece, Reasoning):
            reasoning += piece.text
        elif isinstance(piece, CallOpened):
            calls.append((piece.name, ""))
            ids.append(piece.id)
        else:
            calls[piece.index] = (calls[piece.index][0], calls[piece.index][1] + piece.text)
    assert len(set(ids)) == len(calls)
    return reasoning, content, calls


def shaped(text, rules):
    shaper = rules.shaper()
    return joined([*shaper.push(text), *shaper.finish()])


def test_all_three():
    text = f"<think>I {CALL}</think>\nSure.\n{CALL}\n{CALL}"
    assert shaped(text, rules()) == (
        f"I {CALL}",
        "Sure.",
        [("f", '{"a": 1}'), ("f", '{"a": 1}')],
    )
    assert shaped(text, rules(parallel_tool_calls=False))[2] == [("f", '{"a": 1}')]
    assert shaped(text, ShapeRules()) == ("", text, [])
    assert shaped(CALL, rules(tool_choice="none")) == ("", CALL, [])


def test_pieces_in_order():
    shaper = rules(thinking=True).shaper()
    assert shaper.push("Hm.</think>Well") == [Reasoning("Hm."), Content("Well")]
    opened, arguments = shaper.push(f"\n{CALL}")
    assert isinstance(opened, CallOpened)
    assert (opened.index, opened.name) == (0, "f")
    assert opened.id.startswith("call_")
    assert arguments == CallArguments(0, '{"a": 1}')
    assert shaper.finish() == []
    assert shaper.num_calls == 1


FRAGMENTS = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f"}', CALL, " ", "\n", "a"]
)


@given(
    st.lists(FRAGMENTS, max_size=10).map("".join), st.sampled_from([None, False, True]), st.data()
)
def test_pieces_do_not_matter(text, thinking, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    shaper, pieces = rules(thinking).shaper(), []
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces += shaper.push(text[a:b])
    pieces += shaper.finish()
    assert joined(pieces) == shaped(text, rules(thinking))
    assert len(joined(pieces)[2]) == shaper.num_calls

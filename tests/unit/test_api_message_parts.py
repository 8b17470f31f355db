"""A chat answer's parts: roles once, no empty deltas, every token with its text."""

from hypothesis import given
from hypothesis import strategies as st

from bootstrap.sampling import FinishReason
from cluster.api.answer_schema import ChatDelta
from cluster.api.message_parts import MessageBuilder, MessageParts
from cluster.api.reasoning import ReasoningSplitter
from cluster.balancer.generation import ChoiceDelta
from cluster.balancer.text import TextToken

STOP = FinishReason.STOP


def token(number: int, shown: bool = True) -> TextToken:
    return TextToken(number, number, shown, None)


class Plain:
    """All text is content."""

    num_reasoning_chars = 0

    def push(self, text):
        return [ChatDelta(content=text)]

    def finish(self, reason):
        return [], reason


class Holding:
    """Shows text only at the end, and tells another reason."""

    num_reasoning_chars = 2

    def __init__(self) -> None:
        self.held = ""

    def push(self, text):
        self.held += text
        return []

    def finish(self, reason):
        return [ChatDelta(content=self.held)], f"not {reason}"


def test_choices_interleave_and_each_has_one_role_and_one_end():
    parts = MessageParts([Plain(), Plain()])
    deltas = [
        ChoiceDelta(0, "a", None, (token(1),)),
        ChoiceDelta(1, "", None),
        ChoiceDelta(1, "x", STOP, (token(2), token(3, shown=False))),
        ChoiceDelta(0, "", STOP),
    ]
    made = [part for delta in deltas for part in parts.of(delta)]
    seen = [(p.index, p.delta.model_dump(), [t.token_id for t in p.tokens], p.finish) for p in made]
    role = {"role": "assistant", "content": ""}
    assert seen == [
        (0, role, [], None),
        (0, {"content": "a"}, [1], None),
        (1, role, [], None),
        (1, {"content": "x"}, [2], None),
        (1, {}, [3], "stop"),
        (0, {}, [], "stop"),
    ]


def test_tokens_wait_with_text_that_a_shaper_holds():
    parts = MessageParts([Holding()])
    first = parts.of(ChoiceDelta(0, "a", None, (token(1),)))
    assert [part.tokens for part in first] == [()]
    content, end = parts.of(ChoiceDelta(0, "b", STOP, (token(2), token(3, shown=False))))
    assert (content.delta.content, [t.token_id for t in content.tokens]) == ("ab", [1, 2])
    assert (end.finish, [t.token_id for t in end.tokens]) == ("not stop", [3])
    assert parts.num_reasoning_tokens == 1  # those that begin in front of the third character


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([True, False]))
def test_what_is_reasoning_does_not_depend_on_pieces(sizes, opened):
    text, at, seen = "<think>ab</think>cd"[7 * opened :], 0, []
    splitter = ReasoningSplitter(opened=opened)
    while at < len(text):
        for size in sizes:
            splitter.push(text[at : at + size])
            at += size
            seen.append(splitter.num_chars)
    assert seen == sorted(seen)
    assert splitter.num_chars == text.index("cd")


@given(st.lists(st.text("ab", max_size=3), max_size=6))
def test_parts_added_up_are_the_message(pieces):
    parts, builder = MessageParts([Plain()]), MessageBuilder()
    deltas = [ChoiceDelta(0, piece, None) for piece in pieces] + [ChoiceDelta(0, "", STOP)]
    made = [part for delta in deltas for part in parts.of(delta)]
    for part in made:
        builder.add(part.delta)
    assert builder.message().content == "".join(pieces)
    assert all(part.delta.content for part in made[1:-1])
    assert [part.finish for part in made if part.finish] == ["stop"]

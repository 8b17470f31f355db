"""The pieces of an answer as what its message gains: chat's deltas."""

from collections.abc import Iterable, Sequence

from cluster.api.answer_schema import ChatDelta, FunctionDelta, ToolCallDelta
from cluster.api.shaper import CallOpened, Reasoning, Shaped, Shaper, ShapeRules
from cluster.api.tools.parser import Content


class MessageShaper:
    """A ChoiceShaper. An answer that calls tools ends because of them, unless it was cut off."""

    def __init__(self, rules: ShapeRules) -> None:
        self._shaper = Shaper(rules)

    @property
    def num_reasoning_chars(self) -> int:
        """How much of the text so far is reasoning, markers included."""
        return self._shaper.num_reasoning_chars

    def push(self, text: str) -> Sequence[ChatDelta]:
        """What `text` adds."""
        return _deltas(self._shaper.push(text))

    def finish(self, reason: str) -> tuple[Sequence[ChatDelta], str]:
        """What was held back, and the finish reason to tell in place of `reason`."""
        deltas = _deltas(self._shaper.finish())
        if reason == "stop" and self._shaper.num_calls > 0:
            return deltas, "tool_calls"
        return deltas, reason


def _deltas(pieces: Iterable[Shaped]) -> list[ChatDelta]:
    return [_delta(piece) for piece in pieces]


def _delta(piece: Shaped) -> ChatDelta:
    if isinstance(piece, Content):
        return ChatDelta(content=piece.text)
    if isinstance(piece, Reasoning):
        return ChatDelta(reasoning_content=piece.text)
    if isinstance(piece, CallOpened):
        function = FunctionDelta(name=piece.name, arguments="")
        call = ToolCallDelta(index=piece.index, id=piece.id, type="function", function=function)
    else:
        call = ToolCallDelta(index=piece.index, function=FunctionDelta(arguments=piece.text))
    return ChatDelta(tool_calls=[call])

"""One chat answer's text becomes what a client sees of it: reasoning, content and tool calls.

Owns the order of the two splits and the ids of calls. Knows neither tokens nor chunks.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.api.reasoning import ReasoningSplitter
from cluster.api.tools.parser import CallArguments, CallBegan, Content, ToolCallParser
from cluster.api.tools.plan import ToolPlan


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """Call number `index` of the answer begins; its arguments follow."""

    index: int
    id: str
    name: str


Shaped = Reasoning | Content | CallOpened | CallArguments


@dataclass(frozen=True, slots=True)
class ShapeRules:
    """How the answers of one request are taken apart.

    `thinking` None keeps thoughts in the content; True means that the prompt ends within them.
    """

    thinking: bool | None = None
    tools: ToolPlan | None = None

    def shaper(self) -> "Shaper":
        """For one choice."""
        return Shaper(self)


class Shaper:
    """Joined, the pieces of a streamed answer are those of the same text taken whole."""

    def __init__(self, rules: ShapeRules) -> None:
        thinking, tools = rules.thinking, rules.tools
        self._splitter = None if thinking is None else ReasoningSplitter(opened=thinking)
        self._parser = None if tools is None else ToolCallParser(tools.format, tools.names)
        self._parallel = tools is None or tools.parallel
        self.num_calls = 0

    @property
    def num_reasoning_chars(self) -> int:
        """How much of the text so far is reasoning, markers included."""
        return 0 if self._splitter is None else self._splitter.num_chars

    def push(self, text: str) -> list[Shaped]:
        """What `text` adds; often nothing, while it is not clear what it is part of."""
        if self._splitter is None:
            return self._content(text)
        reasoning, content = self._splitter.push(text)
        return self._shaped(reasoning, content)

    def finish(self) -> list[Shaped]:
        """What was held back, once the text has ended."""
        shaped: list[Shaped] = []
        if self._splitter is not None:
            shaped += self._shaped(*self._splitter.finish())
        if self._parser is not None:
            shaped += self._calls(self._parser.finish())
        return shaped

    def _shaped(self, reasoning: str, content: str) -> list[Shaped]:
        thoughts: list[Shaped] = [Reasoning(reasoning)] if reasoning else []
        return thoughts + self._content(content)

    def _content(self, text: str) -> list[Shaped]:
        if self._parser is None:
            return [Content(text)] if text else []
        return self._calls(self._parser.push(text))

    def _calls(self, pieces: Iterable[Content | CallBegan | CallArguments]) -> list[Shaped]:
        shaped: list[Shaped] = []
        for piece in pieces:
            if isinstance(piece, Content):
                shaped.append(piece)
            elif piece.index > 0 and not self._parallel:
                continue  # the client can handle one call only
            elif isinstance(piece, CallBegan):
                self.num_calls += 1
                shaped.append(CallOpened(piece.index, f"call_{uuid.uuid4().hex[:24]}", piece.name))
            else:
                shaped.append(piece)
        return shaped

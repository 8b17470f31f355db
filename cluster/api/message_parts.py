"""From choices' text to what their messages gain: the place where text gets a structure.

Owns the interface between plain text, which the balancer puts out, and a chat message's fields, and
which tokens go with which part.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.api.answer_schema import AssistantMessage, ChatDelta, FunctionCall, ToolCall
from cluster.balancer.generation import ChoiceDelta
from cluster.balancer.text import TextToken


class ChoiceShaper(Protocol):
    """Turns one choice's text into deltas of its message.

    The deltas joined must not depend on how the text was cut into pieces.
    """

    @property
    def num_reasoning_chars(self) -> int:
        """How much of the text so far is reasoning, markers included."""
        ...

    def push(self, text: str) -> Sequence[ChatDelta]:
        """What `text` adds; nothing where it is held back."""
        ...

    def finish(self, reason: str) -> tuple[Sequence[ChatDelta], str]:
        """What was held back, and the finish reason to tell in place of `reason`."""
        ...


@dataclass(frozen=True, slots=True)
class MessagePart:
    """What one choice's message gains at once; `tokens` are those that its text came from."""

    index: int
    delta: ChatDelta
    tokens: tuple[TextToken, ...] = ()
    finish: str | None = None


class MessageParts:
    """Each choice's parts: its role first, then no empty ones, then one with `finish`.

    Every token of a choice is in one part: with the text that a shaper made of it, or the last.
    """

    def __init__(self, shapers: Sequence[ChoiceShaper]) -> None:
        self._shapers = shapers
        self._tokens: dict[int, tuple[TextToken, ...]] = {}
        self._offsets: list[list[int]] = [[] for _ in shapers]

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens so far that begin within the reasoning, of all choices."""
        return sum(
            bisect_left(offsets, shaper.num_reasoning_chars)
            for offsets, shaper in zip(self._offsets, self._shapers, strict=True)
        )

    def of(self, delta: ChoiceDelta) -> list[MessagePart]:
        """The parts that more of a choice makes."""
        index, shaper = delta.index, self._shapers[delta.index]
        parts = []
        if index not in self._tokens:
            parts.append(MessagePart(index, ChatDelta(role="assistant", content="")))
        self._tokens[index] = self._tokens.get(index, ()) + delta.tokens
        self._offsets[index] += [token.offset for token in delta.tokens]
        gains = list(shaper.push(delta.text)) if delta.text else []
        if delta.finish is None:
            parts += [self._part(index, gain) for gain in gains]
            return parts
        held, reason = shaper.finish(delta.finish.value)
        parts += [self._part(index, gain) for gain in [*gains, *held]]
        return [*parts, self._part(index, ChatDelta(), reason)]

    def _part(self, index: int, gain: ChatDelta, finish: str | None = None) -> MessagePart:
        """Takes all tokens that wait, but leaves those outside the text to the last part."""
        waiting = self._tokens[index]
        num = len(waiting) if finish else sum(token.shown for token in waiting)
        self._tokens[index] = waiting[num:]
        return MessagePart(index, gain, waiting[:num], finish)


class MessageBuilder:
    """Deltas added up are the message of an answer that is not streamed."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def add(self, delta: ChatDelta) -> None:
        """One more delta."""
        self._content.append(delta.content or "")
        self._reasoning.append(delta.reasoning_content or "")
        for call in delta.tool_calls or ():
            if call.id is not None:
                function = FunctionCall(name=call.function.name or "", arguments="")
                self._calls.append(ToolCall(id=call.id, function=function))
            self._calls[call.index].function.arguments += call.function.arguments

    def message(self) -> AssistantMessage:
        """The whole."""
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        has_more = bool(reasoning or self._calls)
        return AssistantMessage(
            content=None if has_more and not content else content,
            reasoning_content=reasoning or None,
            tool_calls=self._calls or None,
        )

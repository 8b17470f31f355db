"""A model's text becomes content and tool calls, piece by piece.

Owns markers and what lies between calls. The result depends on the text alone, never on how it was
cut into pieces; text that only looks like a call comes out as content, character for character.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cluster.api.tools.call_reader import CallReader, Status
from cluster.api.tools.formats import ToolFormat


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer's visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """Call number `index` of this answer, to the tool `name`."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Content | CallBegan | CallArguments


class ToolCallParser:
    """A call is an object that names one of `names`; calls are numbered in the order they begin.

    White space that touches a call is part of no content.
    """

    def __init__(self, format: ToolFormat, names: frozenset[str]) -> None:
        self._format = format
        self._names = names
        self._pieces: list[Piece] = []
        self._num_calls = 0
        self._space = ""  # trailing white space, not shown before more text follows
        self._after_call = False
        self._held = ""  # what may be, or has been, part of a call
        self._reader: CallReader | None = None
        self._state: Callable[[str], str] = self._start if format.bare else self._text

    def push(self, text: str) -> list[Piece]:
        """What `text` adds."""
        while text:
            text = self._state(text)
        return self._take()

    def finish(self) -> list[Piece]:
        """What was held back, once the text has ended."""
        if self._state != self._between:
            self._show(self._held)
        self._held = ""
        if self._space and not self._after_call:
            self._pieces.append(Content(self._space))
        self._space = ""
        return self._take()

    # --- states: each takes some of the text and returns the rest -----------------------------

    def _start(self, text: str) -> str:
        """Nothing but white space yet, and a bare object would be a call."""
        rest = text.lstrip()
        self._show(text[: len(text) - len(rest)])
        if rest:
            self._state = self._opened if rest[0] == "{" else self._text
        return rest

    def _text(self, text: str) -> str:
        """Content, with a marker perhaps to come."""
        begin, text = self._format.begin, self._held + text
        self._held = ""
        at = text.find(begin)
        if at >= 0:
            self._show(text[:at])
            self._held = begin
            self._state = self._opened
            return text[at + len(begin) :]
        num_held = next((n for n in range(len(begin) - 1, 0, -1) if text.endswith(begin[:n])), 0)
        self._show(text[: len(text) - num_held])
        self._held = text[len(text) - num_held :]
        return ""

    def _opened(self, text: str) -> str:
        """Before a call's opening brace; a list of calls may have opened."""
        for at, char in enumerate(text):
            if char == "{":
                self._reader = CallReader(self._names)
                self._state = self._call
                return text[at:]
            if not (char.isspace() or (char == "[" and "[" not in self._held)):
                return self._release(text[at:])
            self._held += char
        return ""

    def _call(self, text: str) -> str:
        """Inside a call's object."""
        reader = self._reader
        assert reader is not None
        began = reader.name is not None
        for at, char in enumerate(text):
            if not reader.push(char):
                self._report(reader, began, text[:at])
                if reader.name is None:
                    return self._release(text[at:])
                self._state = self._between
                return text[at:]
            if reader.status is Status.COMPLETE:
                self._report(reader, began, "")
                self._state = self._between
                return text[at + 1 :]
        self._report(reader, began, text)
        return ""

    def _between(self, text: str) -> str:
        """After a call: an end marker, one more call, or text again."""
        end, begin = self._format.end, self._format.begin
        for at, char in enumerate(text):
            held = self._held + char
            marker = held.lstrip(" \t\r\n,;]")
            if end and marker == end:
                self._held, self._state = "", self._text
                return text[at + 1 :]
            if marker == "{":
                self._state = self._opened
                return text[at:]
            if marker and not end.startswith(marker) and not begin.startswith(marker):
                return self._release(text[at:])
            if marker == begin:
                self._state = self._opened
            self._held = held
            if self._state != self._between:
                return text[at + 1 :]
        return ""

    # --- what comes out -----------------------------------------------------------------------

    def _report(self, reader: CallReader, began: bool, held: str) -> None:
        """Tell of a call that has begun; of one that has not, hold the text back."""
        if reader.name is None:
            self._held += held
            return
        if not began:
            self._pieces.append(CallBegan(self._num_calls, reader.name))
            self._num_calls += 1
            self._held, self._space, self._after_call = "", "", True
        arguments = reader.take_arguments()
        if arguments:
            self._pieces.append(CallArguments(self._num_calls - 1, arguments))

    def _release(self, rest: str) -> str:
        """What was held is no call: show it, and look at `rest` afresh."""
        held, self._held = self._held, ""
        self._show(held)
        self._state = self._text
        return rest

    def _show(self, text: str) -> None:
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if self._after_call:
            shown = shown.lstrip()
        if shown:
            self._after_call = False
            self._pieces.append(Content(shown))

    def _take(self) -> list[Piece]:
        """All pieces since the last time; what belongs together is one."""
        pieces, self._pieces = self._pieces, []
        merged: list[Piece] = []
        for piece in pieces:
            last = merged[-1] if merged else None
            if isinstance(piece, Content) and isinstance(last, Content):
                merged[-1] = Content(last.text + piece.text)
            else:
                merged.append(piece)
        return merged

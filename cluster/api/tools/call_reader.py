"""One tool call's JSON object, read a character at a time.

Owns the shape `{"name": ..., "arguments": {...}}` (`parameters` is the same as `arguments`; other
keys are skipped) and when enough is known to tell a client about it. Knows no markers.
"""

import json
from collections.abc import Callable
from enum import Enum

ARGUMENTS_KEYS = ("arguments", "parameters")
EMPTY_ARGUMENTS = "{}"

_SPACE = frozenset(" \t\r\n")
_SCALAR = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.")
_NESTED = _SPACE | _SCALAR | frozenset("[]{}:,")


class Status(Enum):
    """How far a call is."""

    READING = "reading"
    COMPLETE = "complete"  # its closing brace was taken
    BROKEN = "broken"  # the character that was refused cannot go on with it


class CallReader:
    """`name` is set once the call has begun: it names a known tool, and its arguments are there.

    From then on the arguments' own text streams out by `take_arguments`, as the model wrote it, and
    nothing that follows can undo the call.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.name: str | None = None
        self.status = Status.READING
        self._names = names
        self._named: str | None = None  # the name, which the arguments may still have to follow
        self._has_arguments = False
        self._arguments: list[str] = []
        self._key = ""
        self._string: list[str] = []
        self._then: Callable[[str], bool] = self._keyed
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._step: Callable[[str], bool] = self._open

    def push(self, char: str) -> bool:
        """Take the next character; False if it is none of this call's, which then has ended."""
        if self._step(char):
            return True
        self.status = Status.BROKEN
        return False

    def take_arguments(self) -> str:
        """The arguments' text that came since the last time; nothing before the call has begun."""
        if self.name is None:
            return ""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    # --- one state each: takes a character, or refuses it -------------------------------------

    def _open(self, char: str) -> bool:
        if char == "{":
            self._step = self._first_key
        return char == "{" or char in _SPACE

    def _first_key(self, char: str) -> bool:
        return self._end() if char == "}" else self._next_key(char)

    def _next_key(self, char: str) -> bool:
        if char == '"':
            self._begin_string(self._keyed)
        return char == '"' or char in _SPACE

    def _keyed(self, key: str) -> bool:
        self._key = "arguments" if key in ARGUMENTS_KEYS else key
        self._step = self._colon
        return True

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._step = self._value
        return char == ":" or char in _SPACE

    def _value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char == '"':
            then = {"name": self._take_name, "arguments": self._take_encoded}
            self._begin_string(then.get(self._key, self._skip))
            return True
        if self._key == "name":
            return False
        if self._key == "arguments":
            return self._begin_arguments(char)
        return self._begin_skipped(char)

    def _begin_arguments(self, char: str) -> bool:
        if self._has_arguments or char not in "{n":
            return False
        self._has_arguments = True
        self._begin_if_known()
        if char == "n":  # null
            self._arguments.append(EMPTY_ARGUMENTS)
            self._step = self._scalar
            return True
        self._step = self._inside_arguments
        return self._inside_arguments(char)

    def _begin_skipped(self, char: str) -> bool:
        if char in "{[":
            self._step = self._nested
            return self._nested(char)
        self._step = self._scalar
        return char in _SCALAR

    def _inside_arguments(self, char: str) -> bool:
        taken = self._nested(char)
        if taken:
            self._arguments.append(char)
        return taken

    def _nested(self, char: str) -> bool:
        """Inside brackets, which are counted, not matched: what is inside is the model's affair."""
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = False
            return True
        if char == '"':
            self._quoted = True
            return True
        self._depth += (char in "{[") - (char in "}]")
        if self._depth == 0:
            self._step = self._comma
        return char in _NESTED

    def _scalar(self, char: str) -> bool:
        if char in _SCALAR:
            return True
        self._step = self._comma
        return self._comma(char)

    def _comma(self, char: str) -> bool:
        if char == "}":
            return self._end()
        if char == ",":
            self._step = self._next_key
        return char == "," or char in _SPACE

    def _begin_string(self, then: Callable[[str], bool]) -> None:
        self._then = then
        self._string = ['"']
        self._step = self._inside_string

    def _inside_string(self, char: str) -> bool:
        self._string.append(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._step = self._comma
            return self._decoded("".join(self._string))
        return True

    def _decoded(self, literal: str) -> bool:
        try:
            return self._then(json.loads(literal, strict=False))
        except (ValueError, RecursionError):
            return False

    # --- what a value means -------------------------------------------------------------------

    def _skip(self, text: str) -> bool:
        return True

    def _take_name(self, name: str) -> bool:
        if self._named is not None or name not in self._names:
            return False
        self._named = name
        if self._has_arguments:
            self._begin_if_known()
        return True

    def _take_encoded(self, text: str) -> bool:
        """Arguments as a string that holds JSON, which is how OpenAI's answers write them."""
        if self._has_arguments or not isinstance(json.loads(text), dict):
            return False
        text.encode()  # escapes may spell a lone surrogate, which no answer can hold
        self._has_arguments = True
        self._arguments.append(text)
        self._begin_if_known()
        return True

    def _begin_if_known(self) -> None:
        self.name = self._named

    def _end(self) -> bool:
        if self._named is None:
            return False
        if not self._has_arguments:
            self._arguments.append(EMPTY_ARGUMENTS)
        self.name = self._named
        self.status = Status.COMPLETE
        return True

"""Token ids to text, a few at a time, never half a character.

Knows only a `decode` function over whole id lists. The rule (decode a short window, hold what ends in
U+FFFD, keep the last emitted ids as context) is that of text-generation-inference and vLLM; new here is
that the window stays short when a model puts out broken or never quite complete characters.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"

_MAX_WINDOW = 16  # ids; well above one emitted and one incomplete character in single bytes
_SHORT_WINDOW = 8  # ids; UTF-8 falls back in step within three bytes
_MAX_INCOMPLETE = 3  # U+FFFDs that the bytes of one incomplete character may show as

Decode = Callable[[Sequence[int]], str]


class IncrementalDetokenizer:
    """The pieces of `push` and `finish` joined are `decode` of all ids pushed.

    This holds for decoders that map ids to bytes and bytes to text, as byte-level BPE does. `start` is
    where in that text the first character stands that the last id pushed is, or is part of.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._text = ""  # of the window
        self._num_shown = 0  # characters of it that were returned
        self._num_context = 0  # ids of the window whose text was returned
        self._num_returned = 0  # characters
        self.start = 0

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; often empty inside a character."""
        text = self._decode([*self._window, token_id])
        self.start = self._num_returned + self._num_kept(text)
        if text == self._text and not self._decode([token_id, token_id]):
            return ""  # a special token: no text anywhere
        self._window.append(token_id)
        self._text = text
        piece = self._show(len(text.rstrip(REPLACEMENT)))
        if piece and self._num_shown == len(text):  # a character ends with this id
            del self._window[: self._num_context]
            self._num_context = len(self._window)
            self._text = self._decode(self._window)
            self._num_shown = len(self._text)
        elif len(self._window) > _MAX_WINDOW:
            piece += self._shorten()
        return piece

    def finish(self) -> str:
        """What is still held: an incomplete character becomes U+FFFD, as in a whole decode."""
        piece = self._show(len(self._text))
        self._window, self._text, self._num_shown, self._num_context = [], "", 0, 0
        return piece

    def _num_kept(self, text: str) -> int:
        """Characters held so far that the window's new `text` neither changes nor goes on with."""
        held, new = self._text[self._num_shown :], text[self._num_shown :]
        pairs = enumerate(zip(held, new, strict=False))
        num = next((i for i, (old, now) in pairs if old != now), min(len(held), len(new)))
        return num if len(new) > num else max(0, num - 1)

    def _show(self, num_final: int) -> str:
        piece = self._text[self._num_shown : num_final]
        self._num_shown = max(self._num_shown, num_final)
        self._num_returned += len(piece)
        return piece

    def _shorten(self) -> str:
        """Return what no later byte can change, and drop ids that the held text does not need."""
        piece = self._show(len(self._text) - _MAX_INCOMPLETE)
        held = self._text[self._num_shown :]
        text = self._decode(self._window[-_SHORT_WINDOW:])
        if text.endswith(held) and len(text) > len(held):
            self._window = self._window[-_SHORT_WINDOW:]
            self._text, self._num_shown, self._num_context = text, len(text) - len(held), 0
        return piece

"""Clients' text that spells special tokens, which in a conversation must stay text.

A template and the text it is filled with are one string when they are tokenized, so a message that
says `<|im_end|>` would end its own turn and could go on as somebody else. Such spellings are hidden
while the template is rendered, and tokenized apart from the template's own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from bootstrap.errors import RemoteFault

_FIRST_PRIVATE = 0xF0000  # Unicode's private use planes
_NUM_PRIVATE = 0xFFFE


class UnspellableText(RemoteFault):
    """Text that leaves no character free to stand for a special token."""


class Disguise:
    """Each special token as one character that occurs nowhere in the values to hide them in."""

    def __init__(self, pattern: "re.Pattern[str]", values: Sequence[Any]) -> None:
        """`pattern` finds special tokens. Raises UnspellableText."""
        texts = [text for value in values for text in _strings(value)]
        self.found = sorted({token for text in texts for token in pattern.findall(text)})
        self._pattern = pattern
        used = {char for text in texts for char in text} if self.found else set()
        free = (chr(c) for c in range(_FIRST_PRIVATE, _FIRST_PRIVATE + _NUM_PRIVATE))
        self._chars = dict(zip(self.found, (c for c in free if c not in used), strict=False))
        if len(self._chars) < len(self.found):
            raise UnspellableText("the text uses every private character there is")
        self._tokens = {ord(char): token for token, char in self._chars.items()}

    def hide(self, value: Any) -> Any:
        """`value`, which JSON can hold, with its strings' special tokens hidden."""
        if isinstance(value, str):
            return self._pattern.sub(lambda match: self._chars[match.group()], value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> str:
        """`text` as it was written."""
        return text.translate(self._tokens)


class SpecialText:
    """Knows a tokenizer's special tokens, and how to encode text in which they mean nothing."""

    def __init__(self, tokenizer: Tokenizer, named: Sequence[str]) -> None:
        """`named` are tokens like BOS and EOS, which count whether flagged as special or not."""
        added = tokenizer.get_added_tokens_decoder().values()
        texts = {token.content for token in added if token.special}
        texts.update(named)
        known = ((text, tokenizer.token_to_id(text)) for text in texts if text)
        self._ids = {text: token_id for text, token_id in known if token_id is not None}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._tokenizer = tokenizer

    def is_special(self, text: str) -> bool:
        """Whether `text` spells one special token."""
        return text in self._ids

    def disguise(self, *values: Any) -> Disguise:
        """How to hide the special tokens that `values` spell; raises UnspellableText."""
        return Disguise(self._pattern, values)

    def encode(self, text: str, disguise: Disguise) -> list[int]:
        """Ids of `text`: special tokens where it spells them, hidden ones as plain text."""
        ids: list[int] = []
        end = 0
        for match in self._pattern.finditer(text):
            ids += self._encode_plain(disguise.reveal(text[end : match.start()]))
            ids.append(self._ids[match.group()])
            end = match.end()
        return ids + self._encode_plain(disguise.reveal(text[end:]))

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if set(ids).isdisjoint(self._ids.values()):
            return ids
        # The vocabulary itself has the spelling; a single character never is one.
        parts = [self._plain.encode(char, add_special_tokens=False).ids for char in text]
        return [token_id for part in parts for token_id in part]

    @cached_property
    def _plain(self) -> Tokenizer:
        """Made when it is first needed: few conversations ever spell a special token."""
        plain = Tokenizer.from_str(self._tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)

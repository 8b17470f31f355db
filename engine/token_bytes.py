"""What each id of a vocabulary stands for, as bytes: an id may be a part of a character.

Reads how a tokenizer decodes from its own description; knows byte-level BPE (GPT-2, Llama 3, Qwen),
SentencePiece with byte fallback (Llama 2, Mistral, Gemma), and plain words.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tokenizers import Tokenizer as TokenizersTokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: TokenizersTokenizer) -> tuple[bytes, ...]:
    """The bytes of each id; added tokens, special ones too, stand for their own text.

    Ids that the vocabulary skips are empty. Joined, the bytes of an output are those of its text but
    for a leading space that some decoders strip.
    """
    decoder = tokenizer.decoder
    steps = [] if decoder is None else list(_steps(json.loads(decoder.__getstate__())))
    kinds = {step["type"] for step in steps}
    replaced = [s for s in steps if s["type"] == "Replace" and "String" in s.get("pattern", {})]
    if "Metaspace" in kinds:
        replaced.append({"pattern": {"String": "▁"}, "content": " "})
    table = [b""] * tokenizer.get_vocab_size(with_added_tokens=True)
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id >= len(table):
            continue
        byte = _BYTE.fullmatch(token) if "ByteFallback" in kinds else None
        if byte is not None:
            table[token_id] = bytes([int(byte[1], 16)])
        elif "ByteLevel" in kinds:
            table[token_id] = _from_letters(token)
        else:
            for step in replaced:
                token = token.replace(step["pattern"]["String"], step["content"])
            table[token_id] = token.encode()
    for token_id, added in tokenizer.get_added_tokens_decoder().items():
        if token_id < len(table):
            table[token_id] = added.content.encode()
    return tuple(table)


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A decoder's description, sequences laid flat."""
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


def _from_letters(token: str) -> bytes:
    values = _byte_of_letter()
    return b"".join(bytes([values[c]]) if c in values else c.encode() for c in token)


@cache
def _byte_of_letter() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 letters are themselves, the other bytes follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return letters

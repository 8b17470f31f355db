"""Tokens of any text, for tests that put the seam between two engines where they want it."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import pre_tokenizers

from engine.tokenizer import Tokenizer


def add_tokens(model_dir: Path, texts: Iterable[str]) -> dict[str, int]:
    """Give a tiny model's tokenizer an id for each text, which no encoding ever uses."""
    path = model_dir / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = {}
    for text in texts:
        ((piece, _),) = spelled.pre_tokenize_str(text)
        ids[text] = vocab.setdefault(piece, len(vocab))
    path.write_text(json.dumps(content))
    return ids


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One id for each byte of `text`."""
    size = tokenizer.vocab_size
    by_byte = {raw: i for i in range(size) if len(raw := tokenizer.bytes_of(i)) == 1}
    return [by_byte[bytes([value])] for value in text.encode()]

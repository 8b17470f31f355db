"""A model's tokenizer: text to ids and back, special tokens, chat template, and its digest.

Reads `tokenizer.json` with the `tokenizers` library alone: start-up matters, and importing
`transformers` takes over half a second before anything is loaded.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as TokenizersTokenizer

from bootstrap.errors import ConfigError
from engine.chat_template import BadTemplateInput, ChatTemplate
from engine.config import ModelConfig
from engine.model_folder import TOKENIZER_FILE
from engine.special_text import SpecialText, UnspellableText
from engine.token_bytes import token_bytes

_SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def tokenizer_digest(model_dir: str | Path) -> str:
    """Equal digests mean equal ids for equal text; 32 hex digits over tokenizer.json."""
    return hashlib.blake2b(_read(Path(model_dir) / TOKENIZER_FILE), digest_size=16).hexdigest()


class Tokenizer:
    """Immutable after construction, so thread safe."""

    def __init__(self, model_dir: str | Path) -> None:
        """Raises ConfigError for a folder without a usable tokenizer.json."""
        folder = Path(model_dir)
        raw = _read(folder / TOKENIZER_FILE)
        self.digest = tokenizer_digest(folder)
        self.path = folder / TOKENIZER_FILE
        self._tokenizer = _parse(raw, self.path)
        settings = _read_settings(folder)
        self.special_tokens = _special_tokens(settings)
        self.eos_token_ids = self._eos_token_ids(ModelConfig.from_dir(folder).eos_token_ids)
        self._special_text = SpecialText(self._tokenizer, tuple(self.special_tokens.values()))
        self.chat_template = source = _template_source(folder, settings)
        self._template = None if source is None else ChatTemplate(source, self.special_tokens)

    @property
    def vocab_size(self) -> int:
        """Ids are below it; a model's own vocabulary may be padded beyond."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work."""
        return self._template is not None

    def template_reads(self, variable: str) -> bool:
        """Whether the chat template depends on `variable`, such as `tools`."""
        return self._template is not None and self._template.reads(variable)

    def is_special(self, text: str) -> bool:
        """Whether `text` is the spelling of a special token."""
        return self._special_text.is_special(text)

    def special_token_id(self, name: str) -> int | None:
        """The id of `bos_token`, `pad_token` and so on, where the model has one."""
        token = self.special_tokens.get(name)
        return None if token is None else self._tokenizer.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, which may hold special tokens by name; with BOS where the model wants it."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; broken UTF-8 and ids beyond the vocabulary raise nothing."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def bytes_of(self, token_id: int) -> bytes:
        """What an id stands for, perhaps a part of a character; nothing beyond the vocabulary."""
        table = self._token_bytes
        return table[token_id] if token_id < len(table) else b""

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each id as the vocabulary spells it; nothing for ids that it skips."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Ids of a conversation, up to where the answer begins. Raises BadTemplateInput.

        `variables` reach the template: `add_generation_prompt` (True), `tools`, `documents`, and
        whatever else it reads. Templates write the special tokens that they need themselves; those
        that `messages` and `variables` spell are text like any other.
        """
        if self._template is None:
            raise BadTemplateInput("this model has no chat template; use completions")
        try:
            disguise = self._special_text.disguise(messages, variables)
        except UnspellableText as error:
            raise BadTemplateInput(str(error)) from error
        text = self._template.render(disguise.hide(messages), **disguise.hide(variables))
        if not disguise.found:
            return self.encode(text, add_special_tokens)
        ids = self._special_text.encode(text, disguise)
        return self._with_special_tokens(ids) if add_special_tokens else ids

    def _with_special_tokens(self, ids: list[int]) -> list[int]:
        """`ids` between what `encode` puts around any text."""
        probe = "a"
        bare, whole = self.encode(probe, False), self.encode(probe)
        before = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:before] + ids + whole[before + len(bare) :]

    @cached_property
    def _token_bytes(self) -> tuple[bytes, ...]:
        return token_bytes(self._tokenizer)

    def _eos_token_ids(self, configured: Sequence[int]) -> tuple[int, ...]:
        """The configuration's ids and the tokenizer's own, which may end a turn, not a document."""
        own = self.special_token_id("eos_token")
        ids = (*configured, *(() if own is None else (own,)))
        return tuple(dict.fromkeys(ids))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; allowed are folders with a tokenizer.json of `tokenizers`"
        ) from error


def _parse(raw: bytes, path: Path) -> TokenizersTokenizer:
    try:
        tokenizer = TokenizersTokenizer.from_buffer(raw)
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_settings(folder: Path) -> Mapping[str, Any]:
    """tokenizer_config.json, or nothing where there is none."""
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return {}
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {type(value).__name__}; allowed is a JSON object")
    return value


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and so on; old files say an object where new ones say a string."""
    tokens = {}
    for name in _SPECIAL_TOKEN_NAMES:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template of its own file, or of tokenizer_config.json, where a list has one by default."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return _read(path).decode()
    value = settings.get("chat_template")
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value}.get("default")
    return value if isinstance(value, str) else None

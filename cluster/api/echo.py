"""A prompt that is sent back in front of its completion: its text, and where each token stands in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cluster.api.schema import CompletionRequest
from cluster.balancer.asks import Ask
from cluster.balancer.detokenizer import IncrementalDetokenizer
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """`offsets[i]` is where in `text` the first character of the prompt's token i stands."""

    text: str
    offsets: tuple[int, ...]


def echoes(body: CompletionRequest, ask: Ask, tokenizer: Tokenizer) -> list[Echo]:
    """One for each prompt, or none at all when no echo is asked for."""
    if not body.echo:
        return []
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = [text for text in given if isinstance(text, str)]
    skip = ask.rules.skip_special_tokens
    return [
        _echo(texts[index] if texts else None, prompt, tokenizer, skip)
        for index, prompt in enumerate(ask.prompts)
    ]


def _echo(
    text: str | None, prompt: Sequence[int], tokenizer: Tokenizer, skip_special_tokens: bool
) -> Echo:
    """A text is echoed as it was given: a tokenizer may normalise it, and it may name special tokens."""
    if text is not None and tokenizer.decode(prompt, skip_special_tokens) != text:
        skip_special_tokens = not skip_special_tokens
    decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
    detokenizer, decoded, offsets = IncrementalDetokenizer(decode), "", []
    for token_id in prompt:
        decoded += detokenizer.push(token_id)
        offsets.append(detokenizer.start)
    decoded += detokenizer.finish()
    text = decoded if text is None else text
    return Echo(text, tuple(min(offset, len(text)) for offset in offsets))

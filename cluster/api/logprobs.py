"""Log probabilities in the shapes that clients know: chat's, completions', and vLLM's for prompts.

A token that is no text by itself, part of a character, is named as OpenAI does: by its bytes.
"""

from collections.abc import Sequence

from bootstrap.messages import TokenLogprobs
from cluster.api.answer_schema import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from cluster.balancer.text import TextToken
from engine.tokenizer import Tokenizer

LEAST = -9999.0  # OpenAI's for "very unlikely"; JSON has no infinity


class TokenNames:
    """How tokens are written; with `as_ids` as `token_id:5`, so that no two share a name."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def chat(self, tokens: Sequence[TextToken], num_top: int) -> ChatLogprobs:
        """Those tokens that are part of a message's content."""
        content = []
        for token in tokens:
            if token.shown and token.logprobs is not None:
                one = self._one(token.token_id, token.logprobs.logprob)
                rivals = [self._one(*rival) for rival in token.logprobs.top[:num_top]]
                content.append(
                    ChatTokenLogprob(
                        token=one.token, logprob=one.logprob, bytes=one.bytes, top_logprobs=rivals
                    )
                )
        return ChatLogprobs(content=content)

    def completion(
        self,
        token_ids: Sequence[int],
        scores: Sequence[TokenLogprobs | None],
        offsets: Sequence[int],
        num_top: int,
    ) -> CompletionLogprobs:
        """All tokens; rivals are those asked for and the token itself, by name."""
        tops: list[dict[str, float] | None] = []
        for token_id, score in zip(token_ids, scores, strict=True):
            if score is None:
                tops.append(None)
                continue
            top: dict[str, float] = {}
            for rival, logprob in (*score.top[:num_top], (token_id, score.logprob)):
                top.setdefault(self._text(rival), max(logprob, LEAST))
            tops.append(top)
        return CompletionLogprobs(
            tokens=[self._text(token_id) for token_id in token_ids],
            token_logprobs=[None if s is None else max(s.logprob, LEAST) for s in scores],
            top_logprobs=tops,
            text_offset=list(offsets),
        )

    def prompt(
        self, token_ids: Sequence[int], scores: Sequence[TokenLogprobs], num_top: int
    ) -> PromptLogprobs:
        """vLLM's shape: by id, what was most probable, and the token that stood there."""
        shown: PromptLogprobs = [None]
        for token_id, score in zip(token_ids[1:], scores, strict=True):
            ranked = [(*rival, rank) for rank, rival in enumerate(score.top[:num_top], 1)]
            own = (token_id, score.logprob, None)
            known = {str(i): self._ranked(i, logprob, rank) for i, logprob, rank in (own, *ranked)}
            shown.append(known)
        return shown

    def _ranked(self, token_id: int, logprob: float, rank: int | None) -> PromptLogprob:
        name = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return PromptLogprob(logprob=max(logprob, LEAST), rank=rank, decoded_token=name)

    def _one(self, token_id: int, logprob: float) -> TopLogprob:
        raw = self._tokenizer.bytes_of(token_id)
        name = f"token_id:{token_id}" if self._as_ids else _text_of(raw) or _escaped(raw)
        return TopLogprob(token=name, logprob=max(logprob, LEAST), bytes=list(raw))

    def _text(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        raw = self._tokenizer.bytes_of(token_id)
        return _text_of(raw) or f"bytes:{_escaped(raw)}"


def _text_of(raw: bytes) -> str:
    """The text, or nothing where there is none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def _escaped(raw: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in raw)

"""How a request wants its tokens chosen, as both engines receive it."""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
TokenIds = Annotated[tuple[TokenId, ...], Meta(max_length=1 << 20)]
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_LOGPROBS = 20
MAX_GRAMMAR_CHARS = 1 << 18


class FinishReason(Enum):
    """Why a request's last token was its last; the values are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"


class GrammarKind(Enum):
    """How a grammar is written."""

    JSON_OBJECT = "json_object"  # any JSON object; the text is empty
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"  # a JSON list of strings
    EBNF = "ebnf"  # Lark syntax


class GrammarSpec(Struct, frozen=True):
    """What an answer's text must match. Its state is a function of the output tokens alone."""

    kind: GrammarKind
    text: Annotated[str, Meta(max_length=MAX_GRAMMAR_CHARS)]


class SamplingParams(Struct, frozen=True, omit_defaults=True):
    """Sampling of one sample of one prompt.

    `max_tokens`, `min_tokens` and positions count from the request's first output token, also in an
    attempt that continues after another. `stop_token_ids` holds the model's EOS ids too unless the
    client asked to ignore them; these ids are not sampled before `min_tokens` tokens are out.
    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 filter nothing. The repetition penalty
    looks at prompt and output tokens, the frequency and presence penalties at output tokens, of all
    attempts. `num_logprobs` is how many alternatives each output token's log probability comes with;
    None asks for no log probabilities at all.
    """

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 20)]
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKEN_IDS)] = ()
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] = 1.0
    logit_bias: Annotated[
        tuple[tuple[TokenId, Annotated[float, Meta(ge=-100.0, le=100.0)]], ...],
        Meta(max_length=MAX_LOGIT_BIAS),
    ] = ()
    num_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    grammar: GrammarSpec | None = None

    def finish_at(self, position: int, token_id: int) -> FinishReason | None:
        """Whether `token_id` at output `position` (0-based) ends the request, and why."""
        if position + 1 > self.min_tokens and token_id in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if position + 1 >= self.max_tokens else None

    def banned_at(self, position: int) -> tuple[int, ...]:
        """Token ids that must not be sampled at output `position`."""
        return self.stop_token_ids if position < self.min_tokens else ()

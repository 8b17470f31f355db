"""What clients send: OpenAI's shapes with vLLM's extensions, as pydantic models.

Owns field names, ranges and defaults; `docs/api.md` lists them all. Fields of OpenAI's that change
nothing here are taken and ignored; those that would change the answer and are not supported are
refused unless they ask for nothing.
"""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from bootstrap.sampling import MAX_LOGIT_BIAS, MAX_LOGPROBS
from cluster.api.conversation import ChatMessage
from cluster.api.neutral import IGNORED, NEUTRAL
from cluster.api.structured import StructuredFields
from cluster.api.tools.definitions import ToolFields

MAX_CHOICES = 128
MAX_PROMPTS = 512
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_TOKENS = 1 << 20
MAX_PROMPT_CHARS = 16 << 20
MAX_MESSAGES = 4096

# What the template is given by the server itself.
_TEMPLATE_RESERVED = frozenset(
    {"self", "messages", "tools", "chat_template", "tokenize", "add_special_tokens"}
)
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}")

# A length limit also has pydantic refuse text with lone surrogates, which no tokenizer takes.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Stops = StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None
Tokens = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]
NumLogprobs = Annotated[int, Field(strict=True, ge=0, le=MAX_LOGPROBS)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
Bias = Annotated[Number, Field(ge=-100, le=100)]
Flag = Annotated[bool, Field(strict=True)]
MessageText = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]
PromptText = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]
PromptIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
Prompt = (
    PromptText
    | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    | PromptIds
    | Annotated[list[PromptIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
)


class StreamOptions(BaseModel):
    """What a stream tells beside the answer, and whether its client may come back to it."""

    model_config = ConfigDict(extra="ignore")

    include_usage: Flag = False
    continuous_usage_stats: Flag = False
    resumable: Flag = False

    @property
    def counts_always(self) -> bool:
        """Whether every chunk tells the usage so far."""
        return self.include_usage and self.continuous_usage_stats

    @property
    def left_out(self) -> frozenset[str]:
        """Fields of a chunk that are not sent."""
        return frozenset() if self.include_usage else frozenset({"usage"})


class SamplingRequest(StructuredFields):
    """What chat and text completions have in common."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=256)]
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(strict=True, ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63)] | None = None
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)] | None = None
    stop: Stops = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: Flag = False
    skip_special_tokens: Flag = True
    ignore_eos: Flag = False
    prompt_logprobs: NumLogprobs | None = None
    return_token_ids: Flag | None = None
    return_tokens_as_token_ids: Flag | None = None
    include_stats: Flag = False
    stream: Flag | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kept: dict[str, Any] = {}
        for name, value in body.items():
            if name in cls.model_fields or name not in IGNORED | NEUTRAL.keys():
                kept[name] = value
            elif name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
                raise PydanticCustomError(
                    "unsupported", "'{field}' is not supported by this server", {"field": name}
                )
        return kept

    @field_validator("logit_bias")
    @classmethod
    def _keys_are_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for key in bias or ():
            if not _DECIMAL.fullmatch(key):
                raise PydanticCustomError("bias_key", 'keys must be token ids, as in "50256"')
        return bias

    @model_validator(mode="after")
    def _fields_agree(self) -> "SamplingRequest":
        if self.stream_options is not None and not self.stream:
            raise _conflict("stream_options", "is only allowed when 'stream' is true")
        if self.prompt_logprobs is not None and self.stream:
            raise _conflict("prompt_logprobs", "is not available when 'stream' is true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """All stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def streaming(self) -> StreamOptions:
        """How to stream."""
        return self.stream_options or StreamOptions()

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """The biased ids, in order, and by how much."""
        return tuple(sorted((int(key), value) for key, value in (self.logit_bias or {}).items()))


class CompletionRequest(SamplingRequest):
    """Body of `POST /v1/completions`. Nothing at all can be generated where the prompt is echoed."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)] | None = None
    best_of: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES)] | None = None
    logprobs: NumLogprobs | None = None
    echo: Flag | None = None

    @model_validator(mode="after")
    def _completion_fields_agree(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _conflict("best_of", "must equal 'n': all samples are returned")
        if self.max_tokens == 0 and not self.echo:
            raise _conflict("max_tokens", "must be at least 1 unless 'echo' is true")
        return self


class ChatCompletionRequest(SamplingRequest, ToolFields):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: Flag | None = None
    top_logprobs: NumLogprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _template_variables(cls, variables: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in variables or ():
            if not name.isidentifier() or name in _TEMPLATE_RESERVED:
                # pydantic cannot write a message that holds half a character.
                shown = name.encode("utf-8", "backslashreplace").decode()
                raise PydanticCustomError(
                    "template_variable", "'{name}' cannot be set", {"name": shown}
                )
        return variables

    @model_validator(mode="after")
    def _chat_fields_agree(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise _conflict("top_logprobs", "is only allowed when 'logprobs' is true")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives each output token comes with; None for no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _conflict(field: str, text: str) -> PydanticCustomError:
    return PydanticCustomError("conflict", "'{field}' {text}", {"field": field, "text": text})

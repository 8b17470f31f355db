"""What clients send and get: OpenAI's shapes, as pydantic models.

Owns field names, ranges and defaults. Fields of OpenAI's that change nothing here are taken and
ignored; those that would change the answer and are not supported are refused unless they ask for
nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from cluster.api.neutral import IGNORED, NEUTRAL

MAX_CHOICES = 128
MAX_PROMPTS = 512
MAX_STOPS = 4
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_TOKENS = 1 << 20
MAX_PROMPT_CHARS = 16 << 20
MAX_MESSAGES = 4096


# A length limit also has pydantic refuse text with lone surrogates, which no tokenizer takes.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Stops = StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None
Tokens = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]
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
    """How a stream ends."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class SamplingRequest(BaseModel):
    """What chat and text completions have in common."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=256)]
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(strict=True, ge=-1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63)] | None = None
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)] | None = None
    stop: Stops = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool = False
    stream: bool | None = None
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

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> "SamplingRequest":
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "stream_options", "'stream_options' is only allowed when 'stream' is true"
            )
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """All stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(SamplingRequest):
    """Body of `POST /v1/completions`."""

    prompt: Prompt


class TextPart(BaseModel):
    """A piece of a message; text is the only kind there is."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: MessageText


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: MessageText | list[TextPart]
    name: Annotated[str, Field(max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, message: Any) -> Any:
        """An answer that is sent back has all of OpenAI's fields, most of them empty."""
        if not isinstance(message, dict):
            return message
        return {k: v for k, v in message.items() if k in cls.model_fields or v not in (None, [])}

    @property
    def text(self) -> str:
        """The parts joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(SamplingRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens | None = None


# --- answers ---------------------------------------------------------------------------------


class Usage(BaseModel):
    """Token counts of a whole call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionChoice(BaseModel):
    """A text, or the next piece of one."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class Completion(BaseModel):
    """Answer of `/v1/completions`, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class AssistantMessage(BaseModel):
    """The answer to a conversation."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: str


class ChatCompletion(BaseModel):
    """Answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """What a chunk adds to a message; only that is sent."""

    role: Literal["assistant"] | None = None
    content: str | None = None

    @model_serializer
    def _additions(self) -> dict[str, str]:
        fields = {"role": self.role, "content": self.content}
        return {name: value for name, value in fields.items() if value is not None}


class ChatChunkChoice(BaseModel):
    """A chunk's part of one answer."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: str | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pdserve"
    max_model_len: int | None = None


class ModelList(BaseModel):
    """Answer of `/v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]

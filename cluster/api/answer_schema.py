"""What clients get: OpenAI's answers and chunks, as pydantic models. Owns field names and defaults.

Extensions are named as in vLLM and appear only where a client asked for them.
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer


class Sparse(BaseModel):
    """A model whose fields in `sparse` are left out where they are None."""

    sparse: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _leave_out(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = serialize(self)
        return {k: v for k, v in fields.items() if v is not None or k not in self.sparse}


class PromptTokensDetails(BaseModel):
    """Prompt tokens by how they were had."""

    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    """Output tokens by what they are."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(BaseModel):
    """Token counts of a whole call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptLogprob(BaseModel):
    """What a prompt's token might have been; `rank` is None beyond the alternatives asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; None for the first token
Stats = dict[str, float | int | None]


# --- completions -----------------------------------------------------------------------------


class CompletionLogprobs(BaseModel):
    """Four parallel lists; an echoed prompt's first token has no log probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Sparse):
    """A text, or the next piece of one."""

    sparse = frozenset({"prompt_logprobs", "prompt_token_ids", "token_ids", "stats"})

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    stats: Stats | None = None


class Completion(BaseModel):
    """Answer of `/v1/completions`, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


# --- chat ------------------------------------------------------------------------------------


class TopLogprob(BaseModel):
    """A token that might have stood there."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    """A token of a message."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """The tokens of a message's content."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class FunctionCall(BaseModel):
    """A function and its arguments, which are JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the model wants made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(Sparse):
    """The answer to a conversation; without content where there are only thoughts or calls."""

    sparse = frozenset({"reasoning_content", "tool_calls"})

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Sparse):
    """One answer."""

    sparse = frozenset({"token_ids", "stats"})

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    token_ids: list[int] | None = None
    stats: Stats | None = None


class ChatCompletion(Sparse):
    """Answer of `/v1/chat/completions`."""

    sparse = frozenset({"prompt_logprobs", "prompt_token_ids"})

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class FunctionDelta(Sparse):
    """A function's name, or more of its arguments."""

    sparse = frozenset({"name"})

    name: str | None = None
    arguments: str


class ToolCallDelta(Sparse):
    """What a chunk adds to call number `index`; the first has its id."""

    sparse = frozenset({"id", "type"})

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(Sparse):
    """What a chunk adds to a message; only that is sent."""

    sparse = frozenset({"role", "content", "reasoning_content", "tool_calls"})

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(Sparse):
    """A chunk's part of one answer."""

    sparse = frozenset({"token_ids", "stats"})

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    stats: Stats | None = None


class ChatCompletionChunk(Sparse):
    """One event of a chat stream."""

    sparse = frozenset({"prompt_token_ids"})

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


# --- models ----------------------------------------------------------------------------------


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

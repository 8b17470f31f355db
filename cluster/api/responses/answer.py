"""What `/v1/responses` answers: OpenAI's shapes, as pydantic models."""

from typing import Any, Literal

from pydantic import BaseModel, Field

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class MessageItem(BaseModel):
    """What the model said."""

    id: str
    type: Literal["message"] = "message"
    status: Status = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = Field(default_factory=list)


class CallItem(BaseModel):
    """A function that the model calls."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: Status = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


class ReasoningText(BaseModel):
    """The text of a thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class ReasoningItem(BaseModel):
    """What the model thought."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: Status = "in_progress"
    summary: list[Any] = Field(default_factory=list)
    content: list[ReasoningText] = Field(default_factory=list)


OutputItem = MessageItem | CallItem | ReasoningItem


class InputTokensDetails(BaseModel):
    """Prompt tokens by how they were had."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """Output tokens by what they are."""

    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """Token counts of a call."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    """Why an answer ends early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(BaseModel):
    """An answer, finished or not. The fields from `background` on are those of the request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status = "in_progress"
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem] = Field(default_factory=list)
    usage: ResponseUsage | None = None
    background: bool = False
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, None] = Field(default_factory=lambda: {"effort": None, "summary": None})
    service_tier: Literal["default"] = "default"
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    user: str | None

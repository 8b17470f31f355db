"""The messages of a conversation: their shapes, which may follow which, and what a template gets."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.api.errors import ApiError

MAX_MESSAGE_CHARS = 16 << 20
MAX_CALLS = 256

# A length limit also has pydantic refuse text with lone surrogates, which no tokenizer takes.
MessageText = Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
Name = Annotated[str, Field(max_length=256)]


class TextPart(BaseModel):
    """A piece of a message; text is the only kind there is."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: MessageText


class CalledFunction(BaseModel):
    """What an answer called; `arguments` is JSON text as the model wrote it, so perhaps broken."""

    model_config = ConfigDict(extra="ignore")

    name: Name
    arguments: MessageText


class ToolCall(BaseModel):
    """A call that an earlier answer made."""

    model_config = ConfigDict(extra="ignore")

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: MessageText | list[TextPart] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: MessageText | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, message: Any) -> Any:
        """An answer that is sent back has all of OpenAI's fields, most of them empty."""
        if not isinstance(message, dict):
            return message
        return {k: v for k, v in message.items() if k in cls.model_fields or v not in (None, [])}

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("tool_calls", "only an assistant has tool calls")
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("content", "'content' is required")
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("tool_call_id", "'tool_call_id' is required")
        return self

    @property
    def text(self) -> str:
        """The parts joined."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """What a chat template is given. Raises ApiError for messages that make no conversation.

    Templates know no developers, and want a call's arguments as the object that their text spells.
    """
    called: set[str] = set()
    rendered = []
    for index, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id not in called:
            raise ApiError(
                400,
                f"Invalid value for 'messages.{index}.tool_call_id': a message with role 'tool' must"
                " answer one of the tool calls of a message before it.",
                param="messages",
            )
        called.update(call.id for call in message.tool_calls or ())
        rendered.append(_template_message(message))
    return rendered


def _template_message(message: ChatMessage) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Any] = {"role": role, "content": message.text}
    if message.tool_calls:
        rendered["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    for field in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, field)
        if value is not None:
            rendered[field] = value
    return rendered


def _template_call(call: ToolCall) -> Mapping[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}

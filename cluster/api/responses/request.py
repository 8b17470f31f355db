"""What clients send to `/v1/responses`, and what it comes to as a conversation."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.api.conversation import MAX_CALLS, MessageText, Name
from cluster.api.schema import MAX_MESSAGES, MAX_TOKENS, Flag, Number
from cluster.api.structured import JsonObjectFormat, TextFormat
from cluster.api.tools.definitions import MAX_TOOLS, FunctionDefinition, ToolName

MAX_METADATA = 16  # OpenAI's

# They steer what only OpenAI's own service has.
_IGNORED = frozenset(
    {
        "include", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention", "reasoning",
        "safety_identifier", "service_tier", "stream_options",
    }
)  # fmt: skip
# Nothing is kept between calls, and nothing runs without a client; these values ask for no such thing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "previous_response_id": (),
    "prompt": (),
    "store": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}


class InputPart(BaseModel):
    """A piece of a message; text is the only kind there is."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_text", "output_text", "text", "reasoning_text"]
    text: MessageText


Parts = MessageText | Annotated[list[InputPart], Field(max_length=MAX_MESSAGES)]


class InputMessage(BaseModel):
    """What somebody said."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class InputCall(BaseModel):
    """A call that an earlier answer made."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: MessageText


class InputCallOutput(BaseModel):
    """What came of a call."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call_output"]
    call_id: Name
    output: Parts


class InputReasoning(BaseModel):
    """What an earlier answer thought."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["reasoning"]
    content: Annotated[list[InputPart], Field(max_length=MAX_MESSAGES)] | None = None


InputItem = Annotated[
    InputMessage | InputCall | InputCallOutput | InputReasoning, Field(discriminator="type")
]


class FunctionTool(FunctionDefinition):
    """A function of the client's."""

    type: Literal["function"]


class FunctionChoice(BaseModel):
    """The one function that must be called."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    name: ToolName


class SchemaFormat(BaseModel):
    """JSON that matches a schema."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["json_schema"]
    name: ToolName
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    strict: bool | None = None


class TextSettings(BaseModel):
    """What the answer's text must be like."""

    model_config = ConfigDict(extra="ignore")

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] = (
        TextFormat(type="text")
    )


class ResponseRequest(BaseModel):
    """Body of `POST /v1/responses`."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=256)]
    input: MessageText | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: MessageText | None = None
    max_output_tokens: Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: Flag | None = None
    text: TextSettings | None = None
    stream: Flag | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    user: Annotated[str, Field(max_length=512)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name, allowed in _NEUTRAL.items():
            if body.get(name) is not None and body[name] not in allowed:
                text = "'{field}' is not supported: this server keeps nothing between calls"
                if name in ("top_logprobs", "truncation"):
                    text = "'{field}' is not supported by this server"
                raise PydanticCustomError("unsupported", text, {"field": name})
        dropped = _IGNORED | _NEUTRAL.keys()
        return {name: _typed(name, value) for name, value in body.items() if name not in dropped}

    def as_chat(self) -> dict[str, Any]:
        """The same as a body of `/v1/chat/completions`."""
        fields = {
            "model": self.model,
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tools": [_chat_tool(tool) for tool in self.tools or ()],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self._response_format(),
        }
        if isinstance(self.tool_choice, FunctionChoice):
            chosen = {"name": self.tool_choice.name}
            fields["tool_choice"] = {"type": "function", "function": chosen}
        return {name: value for name, value in fields.items() if value not in (None, [])}

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        turn: dict[str, Any] | None = None  # an answer that may still have more items
        for item in self.input:
            if isinstance(item, InputCallOutput):
                messages.append(_result(item))
                turn = None
            elif isinstance(item, InputMessage) and item.role != "assistant":
                messages.append({"role": item.role, "content": _joined(item.content)})
                turn = None
            else:
                if turn is None or (isinstance(item, InputMessage) and turn["content"]):
                    turn = {"role": "assistant", "content": ""}
                    messages.append(turn)
                _add(turn, item)
        return messages

    def _response_format(self) -> dict[str, Any] | None:
        if self.text is None:
            return None
        wanted = self.text.format
        if isinstance(wanted, SchemaFormat):
            schema = wanted.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
            return {"type": "json_schema", "json_schema": schema}
        return {"type": wanted.type}


def _typed(name: str, value: Any) -> Any:
    """Messages need not say that they are messages."""
    if name != "input" or not isinstance(value, list):
        return value
    return [
        {"type": "message", **item} if isinstance(item, dict) and "role" in item else item
        for item in value
    ]


def _joined(content: Parts) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _result(item: InputCallOutput) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)}


def _add(turn: dict[str, Any], item: InputMessage | InputCall | InputReasoning) -> None:
    """Add an item to the assistant's turn that it was a part of."""
    if isinstance(item, InputMessage):
        turn["content"] += _joined(item.content)
    elif isinstance(item, InputReasoning):
        thought = _joined(item.content or [])
        turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
    else:
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
        if len(turn["tool_calls"]) > MAX_CALLS:
            raise PydanticCustomError("too_many", "an answer has too many function calls")


def _chat_tool(tool: FunctionTool) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}

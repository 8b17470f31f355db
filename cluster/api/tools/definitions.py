"""The shapes of the tools that a request brings, and of the choice among them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_TOOLS = 128  # OpenAI's
MAX_DESCRIPTION_CHARS = 1 << 16

# Keywords through which a schema may have properties beside those in `properties`.
_SAYS_MORE = frozenset(
    {
        "additionalProperties", "allOf", "anyOf", "dependentSchemas", "if", "oneOf",
        "patternProperties", "propertyNames", "unevaluatedProperties", "$ref", "$dynamicRef",
    }
)  # fmt: skip

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class FunctionDefinition(BaseModel):
    """A function of the client's; `parameters` is the JSON schema of its arguments, an object."""

    model_config = ConfigDict(extra="forbid")

    name: ToolName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """What the arguments must match; without parameters there are none.

        Arguments that nobody named help nobody, so they must be allowed explicitly.
        """
        schema = {"type": "object", "properties": {}, **(self.parameters or {})}
        if schema.keys().isdisjoint(_SAYS_MORE):
            schema["additionalProperties"] = False
        return schema


class Tool(BaseModel):
    """A tool; functions are the only kind there is."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(BaseModel):
    """A function by its name."""

    model_config = ConfigDict(extra="forbid")

    name: ToolName


class NamedChoice(BaseModel):
    """The one function that must be called."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: NamedFunction


class ToolFields(BaseModel):
    """The fields of a chat request that are about tools."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None

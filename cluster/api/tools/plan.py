"""What a request's tools come to: what its prompt says, what its answer must match and may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bootstrap.sampling import GrammarSpec
from cluster.api.errors import ApiError
from cluster.api.tools.definitions import NamedChoice, Tool, ToolFields
from cluster.api.tools.formats import ToolFormat
from cluster.api.tools.grammar import calls_in_text, calls_only, calls_or
from cluster.api.tools.prompting import explained


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """Tools that an answer may call. `demanded` are those of which it must call one, if any."""

    format: ToolFormat
    tools: tuple[Tool, ...]
    demanded: tuple[Tool, ...]
    parallel: bool

    @property
    def names(self) -> frozenset[str]:
        """What a call can name."""
        return frozenset(tool.function.name for tool in self.demanded or self.tools)

    def grammar(self, content: GrammarSpec | None) -> GrammarSpec | None:
        """What the whole answer must match when its text must match `content`."""
        if self.demanded:
            return calls_only(self.format, self.demanded, parallel=self.parallel)
        if content is not None:
            return calls_or(content, self.format, self.tools, parallel=self.parallel)
        if any(tool.function.strict for tool in self.tools):
            return calls_in_text(self.format, self.tools, parallel=self.parallel)
        return None


def plan_tools(fields: ToolFields, format: ToolFormat | None) -> ToolPlan | None:
    """None where no tool can be called; `format` None means that this server has none. Raises ApiError.

    With `tool_choice` "none" the tools are kept out of the prompt too, so that no model is tempted.
    """
    tools, choice = tuple(fields.tools or ()), fields.tool_choice
    _check(tools, choice)
    if not tools or choice == "none":
        return None
    if format is None:
        raise ApiError(
            400,
            "'tools' is not supported by this server.",
            param="tools",
            code="unsupported_parameter",
        )
    demanded: tuple[Tool, ...] = tools if choice == "required" else ()
    if isinstance(choice, NamedChoice):
        demanded = tuple(t for t in tools if t.function.name == choice.function.name)
    parallel = fields.parallel_tool_calls is not False and not isinstance(choice, NamedChoice)
    return ToolPlan(format, tools, demanded, parallel)


def prompt_of(
    messages: Sequence[Mapping[str, Any]],
    plan: ToolPlan | None,
    format: ToolFormat,
    *,
    native: bool,
) -> tuple[Sequence[Mapping[str, Any]], list[dict[str, Any]] | None]:
    """Messages and `tools` for a chat template, `native` if that knows tools by itself."""
    tools = [tool.model_dump(exclude_none=True) for tool in plan.tools] if plan is not None else []
    if native:
        return messages, tools or None
    return explained(messages, tools, format), None


def _check(tools: Sequence[Tool], choice: object) -> None:
    names = [tool.function.name for tool in tools]
    for tool in tools:
        name, parameters = tool.function.name, tool.function.parameters or {}
        if names.count(name) > 1:
            raise ApiError(400, f"There are two functions named '{name}'.", param="tools")
        if parameters.get("type", "object") != "object":
            text = f"The parameters of '{name}' must be a schema of type 'object'."
            raise ApiError(400, text, param="tools")
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        text = f"There is no function '{choice.function.name}' in 'tools'."
        raise ApiError(400, text, param="tool_choice")
    if choice == "required" and not names:
        text = "'tool_choice' is only allowed when 'tools' are specified."
        raise ApiError(400, text, param="tool_choice")

"""Tools in words, for chat templates that know nothing of them.

The words are those that Hermes models, Qwen's and SmolLM2's were trained on, so that a model whose
template was merely shortened still understands them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.api.tools.formats import ToolFormat

_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments{within}:
{example}"""

Message = Mapping[str, Any]


def explained(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], format: ToolFormat
) -> list[dict[str, Any]]:
    """`messages` as plain turns: tools in the system message, calls and their results as text."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        turn = _turn(message, format)
        if message["role"] == "tool" and turns and turns[-1].get("results"):
            turns[-1]["content"] += "\n" + turn["content"]
        else:
            turns.append(turn)
    for turn in turns:
        turn.pop("results", None)
    return _with_instructions(turns, tools, format) if tools else turns


def _with_instructions(
    turns: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], format: ToolFormat
) -> list[dict[str, Any]]:
    within = f" within {format.begin}{format.end} XML tags" if format.end else ""
    text = _INSTRUCTIONS.format(
        signatures="\n".join(_json(tool) for tool in tools),
        within=within,
        example=_written(format, "<function-name>", "<args-json-object>"),
    )
    if turns and turns[0]["role"] == "system":
        first = {**turns[0], "content": f"{turns[0]['content']}\n\n{text}".lstrip()}
        return [first, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _turn(message: Message, format: ToolFormat) -> dict[str, Any]:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content, "results": True}
    turn = {"role": message["role"], "content": message["content"]}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    written = [_written(format, _json(c["name"]), _json(c["arguments"])) for c in calls]
    if written:
        text = format.separator.join(written)
        turn["content"] = f"{turn['content']}\n{text}" if turn["content"] else text
    return turn


def _written(format: ToolFormat, name: str, arguments: str) -> str:
    call = f'{{"name": {name}, "{format.arguments_key}": {arguments}}}'
    return f"{format.begin}\n{call}\n{format.end}" if format.end else call


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

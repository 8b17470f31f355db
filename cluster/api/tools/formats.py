"""The families of models, by how they write tool calls, and which of them a chat template teaches."""

from dataclasses import dataclass

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family writes calls: `begin` call `end`, or where `bare` the call alone.

    A call is a JSON object with the tool's name and, under `arguments_key`, its arguments.
    `separator` stands between two calls that a grammar makes a model write.
    """

    name: str
    begin: str
    end: str
    separator: str
    arguments_key: str
    bare: bool = False


# Qwen 2.5 and 3, Hermes 2 and 3, SmolLM2: https://github.com/NousResearch/Hermes-Function-Calling
HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", "\n", "arguments")
# https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/ ("JSON based tool calling")
LLAMA3 = ToolFormat("llama3_json", "<|python_tag|>", "", "; ", "parameters", bare=True)

_FORMATS = {
    "hermes": HERMES,
    "qwen": HERMES,
    "llama3_json": LLAMA3,
}


def tool_format(parser: str, template: str | None) -> ToolFormat | None:
    """The format that the setting `tool_call_parser` names; None where tools are switched off.

    `auto` goes by what the chat template mentions. A template that knows nothing of tools gets
    the Hermes form, which then is explained to the model in words.
    """
    if parser == NONE or (parser == AUTO and template is None):
        return None
    if parser != AUTO:
        return _FORMATS[parser]
    assert template is not None
    if HERMES.begin not in template and (
        LLAMA3.begin in template
        or ('"parameters"' in template and "<|start_header_id|>" in template)
    ):
        return LLAMA3
    return HERMES

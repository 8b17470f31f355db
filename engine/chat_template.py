"""Renders a model's chat template: Jinja from a checkpoint, so untrusted code, in a sandbox.

The environment is the one that templates are written for, as `transformers` sets it up (which costs
0.6 s to import and is not needed here): trimmed blocks, loop controls, `{% generation %}`,
`raise_exception`, `strftime_now`, and a `tojson` that leaves HTML alone.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bootstrap.errors import ConfigError, RemoteFault

# What a template can run into when a client's message is not of the kind that it expects.
_TEMPLATE_FAULTS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class BadTemplateInput(RemoteFault):
    """A conversation that the model's chat template does not accept; the message says why."""


class ChatTemplate:
    """One compiled template. Rendering is thread safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` (`bos_token` and so on) are variables of the template.

        Raises ConfigError for a template that does not compile.
        """
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self._variables = meta.find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise ConfigError(f"chat_template: line {error.lineno}: {error.message}") from error
        self._special_tokens = dict(special_tokens)

    def reads(self, variable: str) -> bool:
        """Whether the template's text depends on `variable`, such as `tools`."""
        return variable in self._variables

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text of a conversation, up to where the answer begins.

        Absent and None fields of a message are the same. Raises BadTemplateInput.
        """
        present = [{k: v for k, v in m.items() if v is not None} for m in messages]
        context = {"tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._template.render(
                {**self._special_tokens, **context, **variables, "messages": present}
            )
        except _TEMPLATE_FAULTS as error:
            raise BadTemplateInput(f"the model's chat template refuses this: {error}") from error


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is just a block."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **how)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)

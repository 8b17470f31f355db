"""What an answer's text must match: OpenAI's and vLLM's fields for it, as one grammar.

Owns field names and the bounds on a grammar's size. Whether one means anything, and how much work that
takes to find out, is the engine's to say.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bootstrap.sampling import GrammarKind, GrammarSpec
from cluster.api.errors import ApiError
from cluster.balancer.grammar_checks import GrammarChecks
from engine.grammar import MAX_TEXT_CHARS
from engine.grammar_probe import GrammarUnchecked

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_CHOICES = 1024
MAX_PROBLEM_CHARS = 500

_POSITION = re.compile(r"^(at )?\d+\(\d+\): ")
_POINTED_AT = re.compile(r"\s*(\d+ \||\^\s*$)")

GrammarText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4096)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]
Schema = dict[str, Any] | GrammarText


class NamedSchema(BaseModel):
    """A schema as `response_format` holds it.

    It is always kept to; unless `strict`, keywords that cannot be are passed over.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(BaseModel):
    """Anything."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class JsonObjectFormat(BaseModel):
    """Any JSON object."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["json_object"]


class JsonSchemaFormat(BaseModel):
    """JSON that matches a schema."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`: one of these."""

    model_config = ConfigDict(extra="forbid")

    json_: Annotated[Schema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None


class StructuredFields(BaseModel):
    """The fields of a request that constrain its answer's text; at most one of them is given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None


def requested_grammar(fields: StructuredFields) -> tuple[GrammarSpec | None, str]:
    """What the answer must match, and the field that says so. Raises ApiError."""
    asked = list(_asked(fields))
    if len(asked) > 1:
        names = " and ".join(f"'{param}'" for param, _, _ in asked)
        raise ApiError(400, f"Only one of {names} can be given.", param=asked[1][0])
    for param, kind, value in asked:
        return _spec(kind, value, param), param
    return None, ""


async def check_grammar(checks: GrammarChecks, grammar: GrammarSpec, param: str) -> None:
    """Raise ApiError for what is no grammar, or needs too much work to find out."""
    try:
        problem = await checks.problem_with(grammar)
    except GrammarUnchecked as error:
        raise ApiError(503, f"The grammar was not checked: {error}.", code="overloaded") from error
    if problem is not None:
        is_own = param in ("guided_grammar", "structured_outputs")
        raise _wrong(param, _told(problem, with_position=is_own))


def _asked(fields: StructuredFields) -> Iterator[tuple[str, GrammarKind, Any]]:
    wanted = fields.response_format
    if isinstance(wanted, JsonObjectFormat):
        yield "response_format", GrammarKind.JSON_OBJECT, ""
    elif isinstance(wanted, JsonSchemaFormat):
        schema = wanted.json_schema.schema_ or {}
        yield (
            "response_format",
            GrammarKind.JSON_SCHEMA,
            schema if wanted.json_schema.strict else lenient(schema),
        )
    several = fields.structured_outputs or StructuredOutputs()
    if several.json_object:
        yield "structured_outputs", GrammarKind.JSON_OBJECT, ""
    for param, kind, value in (
        ("structured_outputs", GrammarKind.JSON_SCHEMA, several.json_),
        ("structured_outputs", GrammarKind.REGEX, several.regex),
        ("structured_outputs", GrammarKind.CHOICE, several.choice),
        ("structured_outputs", GrammarKind.EBNF, several.grammar),
        ("guided_json", GrammarKind.JSON_SCHEMA, fields.guided_json),
        ("guided_regex", GrammarKind.REGEX, fields.guided_regex),
        ("guided_choice", GrammarKind.CHOICE, fields.guided_choice),
        ("guided_grammar", GrammarKind.EBNF, fields.guided_grammar),
    ):
        if value is not None:
            yield param, kind, value


def _spec(kind: GrammarKind, value: Any, param: str) -> GrammarSpec:
    if kind is GrammarKind.JSON_SCHEMA:
        return GrammarSpec(kind, bounded_schema(value, param))
    if kind is GrammarKind.CHOICE:
        value = json.dumps(value)
    if len(value) > MAX_TEXT_CHARS:
        raise _wrong(param, f"it has more than {MAX_TEXT_CHARS} characters")
    return GrammarSpec(kind, value)


def lenient(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with leave to pass over keywords that no grammar can express."""
    return {**schema, "x-guidance": {"lenient": True}}


def terse(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` on one line with a space after each comma and colon, as models write arguments."""
    how = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    given = schema.get("x-guidance")
    return {**schema, "x-guidance": {**(given if isinstance(given, Mapping) else {}), **how}}


def bounded_schema(schema: Mapping[str, Any] | str, param: str) -> str:
    """The text of a JSON schema within our bounds; raises ApiError."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise _wrong(param, "it is not JSON") from error
    if not isinstance(schema, Mapping):
        raise _wrong(param, "a JSON schema is an object here")
    _check_size(schema, param)
    text = json.dumps(schema)
    if len(text) > MAX_TEXT_CHARS:
        raise _wrong(param, f"it has more than {MAX_TEXT_CHARS} characters")
    return text


def _check_size(schema: Mapping[str, Any], param: str) -> None:
    """Before anything recursive sees it."""
    num_nodes = 0
    todo: list[tuple[Any, int]] = [(schema, 1)]
    while todo:
        value, depth = todo.pop()
        num_nodes += 1
        if depth > MAX_DEPTH or num_nodes > MAX_NODES:
            raise _wrong(param, f"it is deeper than {MAX_DEPTH} or has over {MAX_NODES} parts")
        items: Iterable[Any] = ()
        if isinstance(value, Mapping):
            items = value.values()
        elif isinstance(value, list):
            items = value
        todo += [(item, depth + 1) for item in items]


def _told(problem: str, *, with_position: bool) -> str:
    """What llguidance says, without the lines that it points at: most are none of the client's."""
    lines = [line.strip() for line in problem.splitlines() if not _POINTED_AT.match(line)]
    text = " ".join(line for line in lines if line)
    text = text if with_position else _POSITION.sub("", text)
    return text[:MAX_PROBLEM_CHARS].rstrip(".:")


def _wrong(param: str, problem: str) -> ApiError:
    return ApiError(400, f"Invalid value for '{param}': {problem}.", param=param)

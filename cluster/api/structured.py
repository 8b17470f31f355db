"""What an answer's text must match: OpenAI's and vLLM's fields for it, as one grammar.

Owns the bounds that keep a client's grammar from costing more than an answer. Whether a grammar
means anything is llguidance's to say; that is asked off the event loop.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Annotated, Any, Literal

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark
from pydantic import BaseModel, ConfigDict, Field

from bootstrap.sampling import GrammarKind, GrammarSpec
from cluster.api.errors import ApiError

MAX_CHARS = 1 << 17
MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_LINKED_DEPTH = 1500  # what references can unfold to; from about 2000 the library's stack ends
MAX_RULES = 500  # in a chain of some 3000 it ends likewise
MAX_CHOICES = 1024
CHECK_S = 5.0

GrammarText = Annotated[str, Field(min_length=1, max_length=MAX_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4096)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]
Schema = dict[str, Any] | GrammarText

_checkers = ThreadPoolExecutor(2, thread_name_prefix="grammar")


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


async def check_grammar(grammar: GrammarSpec, param: str) -> None:
    """Raise ApiError for what is no grammar, or takes too long to find out."""
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(_checkers, _problem, grammar)
    try:
        problem = await asyncio.wait_for(work, CHECK_S)
    except asyncio.TimeoutError:
        problem = "it is too complex"
    if problem:
        raise _wrong(param, problem)


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
    elif kind is GrammarKind.EBNF:
        value = _lark(value, param)
    if len(value) > MAX_CHARS:
        raise _wrong(param, f"it has more than {MAX_CHARS} characters")
    return GrammarSpec(kind, value)


def lenient(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with leave to pass over keywords that no grammar can express."""
    return {**schema, "x-guidance": {"lenient": True}}


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
    if len(text) > MAX_CHARS:
        raise _wrong(param, f"it has more than {MAX_CHARS} characters")
    return text


def _check_size(schema: Mapping[str, Any], param: str) -> None:
    num_nodes, deepest = 0, 0
    linked: set[str] = set()
    todo: list[tuple[Any, int]] = [(schema, 1)]
    while todo:
        value, depth = todo.pop()
        num_nodes, deepest = num_nodes + 1, max(deepest, depth)
        if depth > MAX_DEPTH or num_nodes > MAX_NODES:
            raise _wrong(param, f"it is deeper than {MAX_DEPTH} or has over {MAX_NODES} parts")
        items: Iterable[Any] = ()
        if isinstance(value, Mapping):
            target = value.get("$ref")
            linked.update([target] if isinstance(target, str) else ())
            items = value.values()
        elif isinstance(value, list):
            items = value
        todo += [(item, depth + 1) for item in items]
    if len(linked) * deepest > MAX_LINKED_DEPTH:
        raise _wrong(param, "its references unfold to too deep a schema")


def _lark(text: str, param: str) -> str:
    """Lark as it is, GBNF translated."""
    if len(re.findall(r"(?m)^\s*[?!]?[\w.-]+[^:\n]*:", text)) > MAX_RULES:
        raise _wrong(param, f"it has more than {MAX_RULES} rules")
    try:
        return str(any_to_lark(text))
    except Exception as error:  # a converter of few checks, over text of any kind
        raise _wrong(param, f"it is neither Lark nor GBNF: {error}") from error


@lru_cache(maxsize=64)
def _problem(grammar: GrammarSpec) -> str:
    """What llguidance has against `grammar`; nothing if it is fine."""
    return str(LLMatcher.validate_grammar(compiled(grammar)))


def compiled(grammar: GrammarSpec) -> str:
    """`grammar` as llguidance takes it."""
    if grammar.kind is GrammarKind.JSON_OBJECT:
        return str(LLMatcher.grammar_from_json_schema('{"type": "object"}'))
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return str(LLMatcher.grammar_from_json_schema(grammar.text))
    if grammar.kind is GrammarKind.REGEX:
        return str(LLMatcher.grammar_from_regex(grammar.text))
    if grammar.kind is GrammarKind.CHOICE:
        choices = " | ".join(json.dumps(c, ensure_ascii=False) for c in json.loads(grammar.text))
        return f"start: {choices}"
    return grammar.text


def _wrong(param: str, problem: str) -> ApiError:
    return ApiError(400, f"Invalid value for '{param}': {problem}.", param=param)

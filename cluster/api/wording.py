"""What pydantic finds wrong, in the words of JSON: clients know no lists, dictionaries or schemas."""

from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = {
    "string_type": "must be a string",
    "string_unicode": "must be text without lone surrogates",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be a smaller integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be {expected_tags}",
    "union_tag_not_found": "must have a {discriminator}",
}
# How pydantic calls an alternative of several; no JSON has such a key where alternatives are.
_ALTERNATIVES = ("constrained-", "list[", "dict[", "function-", "nullable", "tagged-")
_PLAIN_ALTERNATIVES = frozenset({"str", "int", "float", "bool"})


def said(problem: Mapping[str, Any]) -> str:
    """The second half of "'field' ...", or of "Invalid value for 'field': ..."."""
    words = _WORDS.get(problem["type"])
    if words is None:
        return str(problem["msg"])
    context = problem.get("ctx", {})
    return words.format(**{k: f"{v:g}" if isinstance(v, float) else v for k, v in context.items()})


def place(problem: Mapping[str, Any]) -> Sequence[str]:
    """Keys and indices that lead to the wrong value, from the body's top."""
    keys = [key for key in problem["loc"] if key != "body"]
    return [str(key) for i, key in enumerate(keys) if i == 0 or not _is_alternative(key)]


def _is_alternative(key: str | int) -> bool:
    return isinstance(key, str) and (
        key.startswith(_ALTERNATIVES) or key in _PLAIN_ALTERNATIVES or key[:1].isupper()
    )

"""`docs/api.md` lists every field that the API knows, and no others."""

import re
from pathlib import Path

import pytest

from bootstrap.fields import MAX_PROMPT_LOGPROBS
from bootstrap.sampling import MAX_LOGIT_BIAS
from cluster.api.errors import _STATUS
from cluster.api.intake import MAX_REQUESTS
from cluster.api.neutral import IGNORED, NEUTRAL
from cluster.api.resumption import MAX_STREAMS
from cluster.api.schema import (
    MAX_PROMPTS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    ChatCompletionRequest,
    CompletionRequest,
    StreamOptions,
)
from cluster.api.tools.definitions import MAX_TOOLS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def section(title: str) -> str:
    return DOCUMENT.split(f"## {title}\n")[1].split("\n## ")[0]


def fields_of(title: str) -> set[str]:
    """Names in the first column of a section's table."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}


def test_every_field_is_in_a_table_and_nothing_else() -> None:
    documented = fields_of("Both routes") | fields_of("Completions alone") | fields_of("Chat alone")
    known = {*CompletionRequest.model_fields, *ChatCompletionRequest.model_fields}
    assert documented == known | IGNORED | NEUTRAL.keys()
    for name in StreamOptions.model_fields:
        assert f"`{name}`" in section("Both routes")


@pytest.mark.parametrize(
    ("title", "model", "other"),
    [
        ("Completions alone", CompletionRequest, ChatCompletionRequest),
        ("Chat alone", ChatCompletionRequest, CompletionRequest),
    ],
)
def test_fields_of_one_route_are_in_its_own_table(title, model, other) -> None:
    own = set(model.model_fields) - set(other.model_fields)
    assert own <= fields_of(title)
    assert own.isdisjoint(fields_of("Both routes"))


@pytest.mark.parametrize(
    "number",
    [
        MAX_STOPS,
        MAX_STOP_TOKEN_IDS,
        MAX_LOGIT_BIAS,
        MAX_REQUESTS,
        MAX_PROMPTS,
        MAX_TOOLS,
        MAX_STREAMS,
        MAX_PROMPT_LOGPROBS,
    ],
)
def test_bounds_are_the_real_ones(number) -> None:
    assert re.search(rf"\b{number}\b", DOCUMENT)


def test_every_code_of_a_failure_is_listed() -> None:
    codes = {code for status, code in _STATUS.values() if status != 499}
    assert all(f"`{code}`" in section("Errors") for code in codes)

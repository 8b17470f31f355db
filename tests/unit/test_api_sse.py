"""One event is one line, for readers that split at more than a newline too."""

import json

from pydantic import BaseModel

from cluster.api.responses.route import _encoded
from cluster.api.sse import event

TEXT = "a\nb\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029z\N{GRINNING FACE}"


class Chunk(BaseModel):
    """As an answer's part."""

    text: str


def only_line(data: bytes) -> str:
    text = data.decode()
    assert text.endswith("\n\n")
    (line,) = [line for line in text.splitlines() if line.startswith("data: ")]
    assert len(text.splitlines()) == text.count("\n")
    return line.removeprefix("data: ")


def test_a_completion_event_is_one_line_and_says_the_same():
    line = only_line(event(Chunk(text=TEXT)))
    assert json.loads(line) == {"text": TEXT}
    assert "\N{GRINNING FACE}" in line, "only what ends a line is escaped"


def test_a_response_event_is_one_line_and_says_the_same():
    assert json.loads(only_line(_encoded({"type": "t", "delta": TEXT}))) == {
        "type": "t",
        "delta": TEXT,
    }

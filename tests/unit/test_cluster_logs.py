"""The lines of a log, as text and as JSON."""

import json
import logging

import pytest

from bootstrap.identity import Role
from cluster import logs
from cluster.logs import LogSettings


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_line_of_text_names_who_says_it(capsys):
    logs.configure(Role.PREFILL, "prefill-0", LogSettings(), "0123456789abcdef")
    logging.getLogger("x").info("loading %d", 3)
    logging.getLogger("x").debug("not told")
    line = capsys.readouterr().err
    assert line.endswith("INFO    prefill-0@012345 x: loading 3\n")
    assert line.count("\n") == 1


def test_a_line_of_json_holds_what_is_known(capsys):
    logs.configure(Role.BALANCER, "lb", LogSettings("debug", "json"), "0123456789abcdef")
    logging.getLogger("x").debug("a\nb", extra={"request_id": "r1", "room": "ab12"})
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    said = json.loads(line)
    assert said.pop("time").endswith("+00:00")
    assert said == {
        "level": "debug",
        "role": "balancer",
        "worker": "lb",
        "incarnation": "0123456789abcdef",
        "logger": "x",
        "message": "a\nb",
        "request_id": "r1",
        "room": "ab12",
    }


def test_an_exception_is_part_of_its_line(capsys):
    logs.configure(Role.DECODE, "d", LogSettings(format="json"))
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    said = json.loads(capsys.readouterr().err)
    assert said["message"] == "it failed"
    assert "ValueError: broken" in said["exception"]

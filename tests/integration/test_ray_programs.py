"""Programs that `ray-up` runs: lines as they come, a deadline, and an end with all that they started."""

from types import SimpleNamespace

import pytest

from bootstrap.errors import ConfigError
from cluster.ray import remote
from cluster.ray.remote import run
from kv_transfer.backends.process import start_time
from tests.support.waiting import wait_for


def test_lines_come_one_by_one_with_the_exit_code() -> None:
    heard: list[str] = []
    ended = run(["sh", "-c", "echo one; echo two >&2; exit 3"], 60, heard.append)
    assert ended.code == 3
    assert ended.lines == ("one", "two")
    assert heard == ["one", "two"]


def test_a_program_past_its_deadline_ends_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []
    clock = SimpleNamespace(monotonic=lambda: 60.0 if heard else 0.0)  # past it at the first line
    monkeypatch.setattr(remote, "time", clock)
    ended = run(["sh", "-c", "sleep 300 & echo $!; wait"], 60.0, heard.append)
    assert ended.code is None
    (child,) = ended.lines
    wait_for(lambda: start_time(int(child)) is None, what="the child's end")


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="'no-such-program' is not installed"):
        run(["no-such-program"], 5)

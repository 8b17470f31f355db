"""Processes that should be gone, in the kernel's eyes: real ones, stopped, killed and reused."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster.endings import REMOTE_END_S, Endings
from cluster.guard import Guard
from cluster.processes import kill
from kv_transfer.backends.process import ProcessTag, is_gone, start_time, this_process
from tests.support.waiting import wait_for


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def tag_of(pid: int) -> ProcessTag:
    started = start_time(pid)
    assert started is not None
    return msgspec.structs.replace(this_process(), pid=pid, started=started)


def test_a_stopped_process_is_killed_and_gone_only_then(sleeper: subprocess.Popen[bytes]) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    tag = tag_of(sleeper.pid)
    endings = Endings()
    endings.begin("p", tag, now=0.0)
    gone = wait_for(lambda: endings.take_gone(0.0), what="the end")
    assert (gone, len(endings)) == (["p"], 0)
    assert is_gone(tag)
    assert sleeper.wait() == -signal.SIGKILL


def test_one_that_died_by_itself_is_gone_at_once(sleeper: subprocess.Popen[bytes]) -> None:
    tag = tag_of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    endings = Endings()
    endings.begin("p", tag, now=0.0)
    assert endings.take_gone(0.0) == ["p"]
    assert endings.take_gone(0.0) == []


def test_of_another_host_only_time_tells(sleeper: subprocess.Popen[bytes]) -> None:
    elsewhere = msgspec.structs.replace(tag_of(sleeper.pid), boot_id="another host")
    endings = Endings()
    endings.begin("p", elsewhere, now=5.0)
    assert endings.take_gone(5.0 + REMOTE_END_S - 0.1) == []
    assert endings.take_gone(5.0 + REMOTE_END_S) == ["p"]
    assert sleeper.poll() is None  # an equal pid of ours is none of theirs


def test_a_pid_that_another_process_got_is_not_killed(sleeper: subprocess.Popen[bytes]) -> None:
    tag = tag_of(sleeper.pid)
    kill(tag.pid, tag.started - 1)
    assert sleeper.poll() is None
    kill(4_000_000, 1)  # no such process is no error


def test_a_process_that_ends_just_before_it_is_killed_is_no_error(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(pid: int, number: int) -> None:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "kill", too_late)
    kill(sleeper.pid, tag_of(sleeper.pid).started)


def test_what_cannot_be_read_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptors(path: Path, **_: str) -> str:
        raise OSError(24, "Too many open files")

    tag = tag_of(os.getpid())
    assert not is_gone(tag)
    monkeypatch.setattr(Path, "read_text", no_descriptors)
    assert not is_gone(tag)


def test_a_guard_that_died_ends_nobody_elses_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(tmp_path / "run")
    child = guard._process
    child.kill()
    child.wait()
    guard.watch([os.getpid()])
    assert f"the guard (pid {child.pid}) ended" in caplog.text
    assert child.stdin is not None
    child.stdin.close()


def test_a_guard_ends_what_is_left_and_removes_the_folder(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "secret").write_text("s")
    lines = f"4000000 1\n{sleeper.pid} {start_time(sleeper.pid)}\n"
    command = [sys.executable, "-m", "cluster.guard", str(folder)]
    subprocess.run(command, input=lines.encode(), check=True, timeout=60)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not folder.exists()

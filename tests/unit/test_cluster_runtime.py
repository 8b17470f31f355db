"""Runtime folders: what other commands see of a running `up`, and what a dead one leaves."""

import os
from pathlib import Path

import msgspec
import pytest

from bootstrap.errors import ConfigError
from cluster import runtime
from cluster.down import down
from cluster.endpoint import DEFAULT_URL, choose_url
from cluster.runtime import RuntimeFolder, SupervisedWorker, UpRecord
from kv_transfer.backends.process import start_time

URL = "http://127.0.0.1:8123"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run"
    monkeypatch.setenv(runtime.ROOT_VARIABLE, str(path))
    return path


def dead_record(root: Path, pid: int, started: int) -> Path:
    """What an `up` leaves that was killed."""
    RuntimeFolder.create()
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "up.json").write_bytes(msgspec.json.encode(UpRecord(pid, started, URL, "m", 0.0)))
    return folder


def test_a_running_up_is_found_and_its_supervision_read() -> None:
    folder = RuntimeFolder.create()
    assert runtime.running() == []  # no record yet
    folder.write_record(URL, "m", 0.0)
    (record,) = runtime.running()
    assert (record.pid, record.url, record.model) == (os.getpid(), URL, "m")
    assert runtime.supervision(record) == ()
    worker = SupervisedWorker("decode-0", "decode", "waiting", "", None, 2, 0.4, "killed")
    folder.write_supervision((worker,))
    assert runtime.supervision(record) == (worker,)
    folder.remove()
    assert runtime.running() == []


def test_a_secret_is_random_and_closed_to_others(root: Path) -> None:
    folder = RuntimeFolder.create()
    first, second = Path(folder.write_secret("a")), Path(folder.write_secret("b"))
    assert first.read_text() != second.read_text()
    assert len(first.read_text()) == 64
    assert first.stat().st_mode & 0o777 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_what_a_killed_up_left_is_removed(root: Path) -> None:
    folder = dead_record(root, pid=4_000_000, started=1)  # beyond the kernel's largest pid here
    assert runtime.running() == []
    assert not folder.exists()


def test_a_pid_that_was_reused_is_not_taken_for_the_old_up(root: Path) -> None:
    started = start_time(os.getpid())
    assert started is not None
    folder = dead_record(root, os.getpid(), started - 1)
    assert runtime.running() == []
    assert not folder.exists()
    assert down(None) == 0  # and nobody is killed


def test_a_folder_that_others_may_enter_is_refused(root: Path) -> None:
    root.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="mode 0700"):
        RuntimeFolder.create()


def test_the_endpoint_is_the_given_one_then_the_running_one_then_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose_url(None) == DEFAULT_URL
    RuntimeFolder.create().write_record(URL, "m", 0.0)
    assert choose_url(None) == URL
    assert choose_url("http://other:1/") == "http://other:1"


def test_several_running_ask_for_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [UpRecord(1, 1, URL, "m", 0.0), UpRecord(2, 1, "http://127.0.0.1:9", "m", 0.0)]
    monkeypatch.setattr(runtime, "running", lambda: both)
    with pytest.raises(ConfigError, match="allowed are 8123, 9"):
        down(None)
    with pytest.raises(ConfigError, match=f"allowed are {URL}"):
        choose_url(None)
    assert down(7777) == 0
    with pytest.raises(ConfigError, match="port=99999: allowed are 1 to 65535"):
        down(99999)

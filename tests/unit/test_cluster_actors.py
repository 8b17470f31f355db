"""The actors' shell without Ray: what it does with a worker that serves, fails or is stopped."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster import logs
from cluster.actors import PrefillActor, WorkerActor, WorkerSpec, load_class
from kv_transfer.backends.process import this_process
from tests.support.dummy_worker import DummySettings
from tests.support.waiting import wait_for

HOSTED = "tests.support.dummy_worker:DummyWorker"


@pytest.fixture(autouse=True)
def process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An actor sets up its process: keep that from ours."""
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def actor(folder: Path, fail: str | None = None, hosted: str = HOSTED) -> WorkerActor:
    settings = DummySettings("prefill-0", str(folder), fail)
    return PrefillActor(WorkerSpec("prefill-0", Role.PREFILL, hosted, settings))


def test_a_life_from_import_to_stop(tmp_path: Path) -> None:
    shell = actor(tmp_path)
    assert (shell.report().stage, shell.report().ref) == ("importing", None)
    assert not list(tmp_path.iterdir())  # the constructor is cheap
    life = threading.Thread(target=shell.run)
    life.start()
    wait_for(lambda: shell.report().serving, what="serving")
    report = shell.report()
    assert report.stage == "serving nothing"
    assert report.process == this_process()
    assert report.ref is not None
    assert report.ref.worker_id == "prefill-0"
    assert (tmp_path / report.ref.incarnation).read_text() == str(os.getpid())
    shell.stop()
    life.join(60)
    assert not life.is_alive()


def test_a_worker_that_fails_to_start_ends_the_life_with_its_error(tmp_path: Path) -> None:
    shell = actor(tmp_path, fail="no memory")
    with pytest.raises(RuntimeError, match="no memory"):
        shell.run()
    assert not shell.report().serving
    assert shell.report().ref is not None  # whom to evict


def serving(shell: WorkerActor) -> tuple[threading.Thread, list[str]]:
    words: list[str] = []
    life = threading.Thread(target=lambda: words.append(shell.run()))
    life.start()
    wait_for(lambda: shell.report().serving, what="serving")
    return life, words


def test_a_life_that_drains_tells_what_its_end_came_to(tmp_path: Path) -> None:
    shell = actor(tmp_path)
    life, words = serving(shell)
    shell.drain(7.0)
    life.join(60)
    assert words == ["drained within 7 s"]
    assert shell.report().stage == "draining"


def test_a_signal_drains_and_a_second_one_stops(tmp_path: Path) -> None:
    settings = DummySettings("prefill-0", str(tmp_path), busy=True)
    shell = PrefillActor(WorkerSpec("prefill-0", Role.PREFILL, HOSTED, settings, drain_s=5.0))
    life, words = serving(shell)
    os.kill(os.getpid(), signal.SIGTERM)
    assert shell.report().stage == "draining"
    assert life.is_alive()  # its work is not done
    os.kill(os.getpid(), signal.SIGTERM)
    life.join(60)
    assert words == ["drained within 5 s"]


def test_a_drain_before_there_is_anything_to_finish_is_a_stop(tmp_path: Path) -> None:
    shell = actor(tmp_path)
    shell.drain(7.0)
    assert shell.run() == "stopped before it began"


def test_a_stop_that_comes_first_wins(tmp_path: Path) -> None:
    shell = actor(tmp_path)
    shell.stop()
    shell.run()
    assert not list(tmp_path.iterdir())


def test_what_to_host_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hosted='tests\.support\.dummy_worker:Nobody'"):
        load_class("tests.support.dummy_worker:Nobody")
    with pytest.raises(ModuleNotFoundError):
        actor(tmp_path, hosted="no.such.module:Worker").run()

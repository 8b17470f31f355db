"""The life of an engine's process: what ends it, and that its end is complete."""

import threading
from pathlib import Path

import pytest

from bootstrap.errors import LocalMisuse
from bootstrap.service import BootstrapService
from engine import host
from engine.settings import EngineSettings
from prefill.worker import PrefillWorker
from tests.support.engine_cluster import EngineCluster
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_a_dead_thread_breaks_the_engine(model_dir: Path) -> None:
    with EngineCluster(model_dir) as cluster:
        engine = cluster.engines["d0"]
        engine._pump.stop()
        with pytest.raises(LocalMisuse, match="transfer pump"):
            engine.wait()


def test_a_step_that_does_not_end_breaks_the_engine(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "STUCK_STEP_S", 2.0)
    with EngineCluster(model_dir) as cluster:
        engine, released = cluster.engines["d0"], threading.Event()
        monkeypatch.setattr(engine.core, "tick", lambda now: released.wait(60))
        try:
            with pytest.raises(LocalMisuse, match="a step does not end"):
                engine.wait()
        finally:
            released.set()
            monkeypatch.undo()


def test_every_stop_returns_when_the_goodbye_is_said(model_dir: Path) -> None:
    with EngineCluster(model_dir) as cluster:
        engine, other = cluster.engines["d0"], cluster.engines["p0"]
        first = threading.Thread(target=engine.stop)
        first.start()
        engine.wait()
        engine.stop()
        first.join(10)
        assert not first.is_alive()
        assert not engine._client.is_alive
        wait_for(lambda: other.num_known_workers == 1, what="the goodbye")


def test_stopped_before_it_started(model_dir: Path) -> None:
    service = BootstrapService("tcp://127.0.0.1:0")
    service.start()
    settings = EngineSettings(
        worker_id="p0",
        model_dir=str(model_dir),
        model_name="tiny",
        bootstrap=service.endpoint,
        transfer="fake",
    )
    worker = PrefillWorker(settings)
    worker.stop()
    worker.start()
    worker.wait()
    service.stop()

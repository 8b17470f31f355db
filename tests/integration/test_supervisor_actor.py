"""The supervisor actor over a real private Ray, hosting workers that serve nothing."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootstrap.identity import Role
from cluster import ray_session, runtime
from cluster.actors import WorkerSpec
from cluster.bootstrap_host import BootstrapSettings
from tests.support.dummy_worker import DummySettings
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

HOSTED = "tests.support.dummy_worker:DummyWorker"


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pds-", dir="/tmp"))  # socket paths are short
    ray_session.start_private(folder, num_actors=4)
    yield folder
    ray_session.leave()
    shutil.rmtree(folder, ignore_errors=True)


def dummy(worker_id: str, role: Role, folder: Path, fail: str | None = None) -> WorkerSpec:
    return WorkerSpec(worker_id, role, HOSTED, DummySettings(worker_id, str(folder), fail))


def supervise(specs: list[WorkerSpec], bootstrap: str) -> Any:
    import ray

    from cluster.supervisor_actor import SupervisorActor

    make = ray.remote(num_cpus=0.1, max_concurrency=3)(SupervisorActor)
    return make.remote(specs, bootstrap, None, "info")


def status_of(supervisor: Any) -> dict[str, runtime.SupervisedWorker]:
    import ray

    return {w.worker_id: w for w in ray.get(supervisor.status.remote(), timeout=10)}


def serving(supervisor: Any, *worker_ids: str) -> dict[str, runtime.SupervisedWorker] | None:
    seen = status_of(supervisor)
    return seen if all(w in seen and seen[w].state == "serving" for w in worker_ids) else None


def test_killed_worker_comes_back_as_a_new_incarnation_and_survivors_stay(
    ray_folder: Path, tmp_path: Path
) -> None:
    import ray

    endpoint = f"tcp://127.0.0.1:{runtime.free_port('127.0.0.1')}"
    bootstrap = WorkerSpec(
        "bootstrap",
        Role.BOOTSTRAP,
        "cluster.bootstrap_host:BootstrapHost",
        BootstrapSettings(endpoint, None),
    )
    workers = [dummy("prefill-0", Role.PREFILL, tmp_path), dummy("decode-0", Role.DECODE, tmp_path)]
    supervisor = supervise([bootstrap, *workers], endpoint)
    run = supervisor.run.remote()
    names = ("bootstrap", "prefill-0", "decode-0")
    before = wait_for(lambda: serving(supervisor, *names), 60, "all serving")

    pid = int((tmp_path / str(before["decode-0"].incarnation)).read_text())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: status_of(supervisor)["decode-0"].num_restarts == 1, 20, "a restart")
    after = wait_for(lambda: serving(supervisor, *names), 30, "all serving again")

    assert after["decode-0"].incarnation != before["decode-0"].incarnation
    assert after["decode-0"].last_error.startswith(f"process {pid} died: ")
    assert "common causes" not in after["decode-0"].last_error
    assert after["prefill-0"] == before["prefill-0"]
    assert after["bootstrap"] == before["bootstrap"]

    supervisor.stop.remote()
    assert ray.get(run, timeout=20) is None
    pids = [int(life.read_text()) for life in tmp_path.iterdir()]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20, "no process left")


def test_crash_loop_backs_off_and_tells_the_last_error(ray_folder: Path, tmp_path: Path) -> None:
    import ray

    endpoint = f"tcp://127.0.0.1:{runtime.free_port('127.0.0.1')}"
    broken = dummy("prefill-0", Role.PREFILL, tmp_path, fail="no such weights")
    sound = dummy("decode-0", Role.DECODE, tmp_path)
    supervisor = supervise([broken, sound], endpoint)
    run = supervisor.run.remote()

    wait_for(lambda: status_of(supervisor).get("prefill-0"), 30, "a status")
    wait_for(lambda: status_of(supervisor)["prefill-0"].num_restarts >= 2, 60, "two restarts")
    seen = status_of(supervisor)
    assert seen["prefill-0"].last_error == "RuntimeError: no such weights"
    assert len(list(tmp_path.iterdir())) >= 3  # a life each
    assert seen["decode-0"].num_restarts == 0

    supervisor.stop.remote()
    assert ray.get(run, timeout=20) is None

"""The supervisor actor over a real private Ray, hosting workers that serve nothing."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootstrap.errors import RemoteFault
from bootstrap.identity import Role
from cluster import ray_session, runtime
from cluster.actors import WorkerSpec
from cluster.bootstrap_host import BootstrapSettings
from cluster.logs import LogSettings
from kv_transfer.backends.process import start_time
from tests.support.dummy_worker import DummySettings
from tests.support.ray_token import forget_ray_token
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

HOSTED = "tests.support.dummy_worker:DummyWorker"


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pds-", dir="/tmp"))  # socket paths are short
    ray_session.start_private(folder, num_actors=4)
    yield folder
    ray_session.leave()
    forget_ray_token()
    shutil.rmtree(folder, ignore_errors=True)


def dummy(worker_id: str, role: Role, folder: Path, fail: str | None = None) -> WorkerSpec:
    return WorkerSpec(worker_id, role, HOSTED, DummySettings(worker_id, str(folder), fail))


def supervise(specs: list[WorkerSpec], bootstrap: str) -> Any:
    import ray

    from cluster.supervisor_actor import SupervisorActor

    make = ray.remote(num_cpus=0.1, max_concurrency=3)(SupervisorActor)
    return make.remote(**arguments(specs, bootstrap))


def arguments(specs: list[WorkerSpec], bootstrap: str) -> dict[str, Any]:
    return {
        "specs": specs,
        "bootstrap": bootstrap,
        "secret_file": None,
        "log": LogSettings(),
        "start_timeout_s": 60.0,
        "drain_s": 5.0,
    }


def status_of(supervisor: Any) -> dict[str, runtime.SupervisedWorker]:
    import ray

    return {w.worker_id: w for w in ray.get(supervisor.look.remote(), timeout=60).workers}


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
    wait_for(lambda: status_of(supervisor)["decode-0"].num_restarts == 1, 60, "a restart")
    after = wait_for(lambda: serving(supervisor, *names), 60, "all serving again")

    assert after["decode-0"].incarnation != before["decode-0"].incarnation
    assert after["decode-0"].last_error.startswith(f"process {pid} died: ")
    assert "common causes" not in after["decode-0"].last_error
    assert after["prefill-0"] == before["prefill-0"]
    assert after["bootstrap"] == before["bootstrap"]

    supervisor.stop.remote()
    assert ray.get(run, timeout=60) is None
    pids = [int(life.read_text()) for life in tmp_path.iterdir()]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20, "no process left")


def test_crash_loop_backs_off_and_tells_the_last_error(ray_folder: Path, tmp_path: Path) -> None:
    import ray

    endpoint = f"tcp://127.0.0.1:{runtime.free_port('127.0.0.1')}"
    broken = dummy("prefill-0", Role.PREFILL, tmp_path, fail="no such weights")
    sound = dummy("decode-0", Role.DECODE, tmp_path)
    supervisor = supervise([broken, sound], endpoint)
    run = supervisor.run.remote()

    wait_for(lambda: status_of(supervisor).get("prefill-0"), 60, "a status")
    wait_for(lambda: status_of(supervisor)["prefill-0"].num_restarts >= 2, 60, "two restarts")
    seen = status_of(supervisor)
    assert seen["prefill-0"].last_error == "RuntimeError: no such weights"
    # The third life and the sound worker's only one may just have begun.
    wait_for(lambda: len(list(tmp_path.iterdir())) >= 4, 60, "four lives")
    assert seen["decode-0"].num_restarts == 0

    supervisor.stop.remote()
    assert ray.get(run, timeout=60) is None


def test_a_stuck_worker_is_evicted_only_when_its_process_is_gone(
    ray_folder: Path, tmp_path: Path
) -> None:
    import ray

    from tests.support.impatient_supervisor import ImpatientSupervisor

    endpoint = f"tcp://127.0.0.1:{runtime.free_port('127.0.0.1')}"
    specs = [dummy("prefill-0", Role.PREFILL, tmp_path)]
    make = ray.remote(num_cpus=0.1, max_concurrency=3)(ImpatientSupervisor)
    supervisor = make.remote(folder=str(tmp_path), **arguments(specs, endpoint))
    run = supervisor.run.remote()
    before = wait_for(lambda: serving(supervisor, "prefill-0"), 60, "serving")["prefill-0"]
    pid = int((tmp_path / str(before.incarnation)).read_text())
    started = start_time(pid)

    os.kill(pid, signal.SIGSTOP)
    ray.get(supervisor.lose_patience.remote(), timeout=60)
    wait_for(lambda: status_of(supervisor)["prefill-0"].num_restarts == 1, 60, "a restart")
    assert start_time(pid) != started
    assert (tmp_path / f"evicted-{before.incarnation}").read_text() == "gone"
    after = wait_for(lambda: serving(supervisor, "prefill-0"), 60, "serving again")["prefill-0"]
    assert after.last_error == "no sign of life for 2 s, killed"

    supervisor.stop.remote()
    assert ray.get(run, timeout=60) is None


def test_a_worker_that_never_names_itself_is_killed_and_started_again(
    ray_folder: Path, tmp_path: Path
) -> None:
    import ray

    from cluster.supervisor_actor import SupervisorActor

    endpoint = f"tcp://127.0.0.1:{runtime.free_port('127.0.0.1')}"
    settings = DummySettings("prefill-0", str(tmp_path), nameless=True)
    specs = [WorkerSpec("prefill-0", Role.PREFILL, HOSTED, settings)]
    make = ray.remote(num_cpus=0.1, max_concurrency=3)(SupervisorActor)
    supervisor = make.remote(**{**arguments(specs, endpoint), "start_timeout_s": 3.0})
    run = supervisor.run.remote()
    wait_for(lambda: len(list(tmp_path.iterdir())) >= 2, 120, "a second life")
    first = min(tmp_path.iterdir(), key=lambda life: life.stat().st_mtime_ns)
    assert start_time(int(first.name.partition("-")[2])) is None
    last_error = status_of(supervisor)["prefill-0"].last_error
    assert last_error == "importing for more than start_timeout_s=3, killed"
    supervisor.stop.remote()
    assert ray.get(run, timeout=60) is None


def test_a_supervisor_that_cannot_live_is_given_up(ray_folder: Path, tmp_path: Path) -> None:
    from cluster.supervisor_child import MAX_FAILURES, SupervisorChild

    broken = {**arguments([], "tcp://127.0.0.1:1"), "secret_file": str(tmp_path / "missing")}
    now = 0.0
    child = SupervisorChild(broken, now)
    for _ in range(MAX_FAILURES - 1):
        wait_for(child.has_ended, 60, "a death")
        assert child.tend(now) is None
        assert child.tend(now) is None  # not at once
        assert child.has_ended()
        now += 10.0
        assert child.tend(now) is None
    wait_for(child.has_ended, 60, "the last death")
    with pytest.raises(RemoteFault, match=r"died 5 times in a row: .*missing"):
        child.tend(now)

"""Orders to a supervisor over a real private Ray, whose workers are members and serve nothing."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootstrap.identity import Role
from cluster import ray_session, runtime
from cluster.actors import WorkerSpec
from cluster.bootstrap_host import BootstrapSettings
from cluster.logs import LogSettings
from cluster.orders import DrainEngine, Order, RestartEngines, ScaleEngines
from cluster.rollout import RolloutState
from tests.support.dummy_worker import DummySettings
from tests.support.ray_token import forget_ray_token
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

HOSTED = "tests.support.dummy_worker:DummyWorker"
DRAIN_S = 20.0


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pds-", dir="/tmp"))  # socket paths are short
    ray_session.start_private(folder, num_actors=8)
    yield folder
    ray_session.leave()
    forget_ray_token()
    shutil.rmtree(folder, ignore_errors=True)


class Supervised:
    """A supervisor with a bootstrap service and dummies of both roles, all serving."""

    def __init__(self, folder: Path, names: list[str], **dummy: Any) -> None:
        import ray

        from cluster.supervisor_actor import SupervisorActor

        endpoint = f"tcp://127.0.0.1:{runtime.free_port('127.0.0.1')}"
        hosted = "cluster.bootstrap_host:BootstrapHost"
        specs = [WorkerSpec("bootstrap", Role.BOOTSTRAP, hosted, BootstrapSettings(endpoint, None))]
        for name in names:
            settings = DummySettings(name, str(folder), bootstrap=endpoint, **dummy)
            role = Role(name.partition("-")[0])
            specs.append(WorkerSpec(name, role, HOSTED, settings, drain_s=DRAIN_S))
        make = ray.remote(num_cpus=0.1, max_concurrency=4)(SupervisorActor)
        self._actor = make.remote(
            specs=specs,
            bootstrap=endpoint,
            secret_file=None,
            log=LogSettings(),
            start_timeout_s=60.0,
            drain_s=DRAIN_S,
        )
        self._run = self._actor.run.remote()
        wait_for(lambda: self.all_serve(names), 120, "all serving")

    def look(self) -> Any:
        import ray

        return ray.get(self._actor.look.remote(), timeout=60)

    def lives(self) -> dict[str, str]:
        """Incarnations of the engines."""
        workers = self.look().workers
        return {w.worker_id: w.incarnation for w in workers if w.worker_id != "bootstrap"}

    def all_serve(self, names: list[str]) -> bool:
        workers = [w for w in self.look().workers if w.worker_id != "bootstrap"]
        return [w.worker_id for w in workers] == names and all(
            w.state == "serving" for w in workers
        )

    def order(self, order: Order) -> int | str:
        import ray

        answer: int | str = ray.get(self._actor.order.remote(order), timeout=60)
        return answer

    def ended(self, number: int | str) -> tuple[RolloutState, str]:
        """What came of an order, once it is over."""

        def status() -> Any:
            (seen,) = [order for order in self.look().orders if order.number == number] or [None]
            return seen if seen and seen.state is not RolloutState.RUNNING else None

        found = wait_for(status, 120, "the order's end")
        return found.state, found.words

    def stop(self) -> None:
        import ray

        self._actor.stop.remote()
        assert ray.get(self._run, timeout=60) is None


@pytest.fixture
def stopped() -> Iterator[list[Supervised]]:
    made: list[Supervised] = []
    yield made
    for each in made:
        each.stop()


def test_engines_come_go_and_are_renewed_while_the_others_live_on(
    ray_folder: Path, tmp_path: Path, stopped: list[Supervised]
) -> None:
    cluster = Supervised(tmp_path, ["prefill-0", "prefill-1", "decode-0"])
    stopped.append(cluster)
    first = cluster.lives()

    state, words = cluster.ended(cluster.order(ScaleEngines(prefill=1, decode=2)))
    assert state is RolloutState.DONE, words
    assert cluster.all_serve(["prefill-0", "decode-0", "decode-1"])
    assert words.split("\n")[0].startswith("decode-1: serves after ")
    assert words.split("\n")[1] == f"prefill-1: drained within {DRAIN_S:g} s"
    second = cluster.lives()
    assert {name: second[name] for name in ("prefill-0", "decode-0")} == {
        name: first[name] for name in ("prefill-0", "decode-0")
    }
    # A successor of the supervisor would keep the same engines alive.
    wanted = [spec.worker_id for spec in cluster.look().wanted]
    assert wanted == ["bootstrap", "prefill-0", "decode-0", "decode-1"]

    state, words = cluster.ended(cluster.order(RestartEngines("decode", timeout_s=30.0)))
    assert state is RolloutState.DONE, words
    assert words.count("drained within 30 s") == 2
    third = cluster.lives()
    assert third["prefill-0"] == first["prefill-0"]
    assert not {third["decode-0"], third["decode-1"]} & {second["decode-0"], second["decode-1"]}

    refusal = cluster.order(DrainEngine("decode-9"))
    assert refusal == "worker='decode-9': allowed are prefill-0, decode-0, decode-1"
    state, words = cluster.ended(cluster.order(DrainEngine("decode-0")))
    assert state is RolloutState.DONE, words
    assert cluster.all_serve(["prefill-0", "decode-1"])

    # The only engine of its role has its successor beside it first.
    state, words = cluster.ended(cluster.order(RestartEngines("prefill")))
    assert state is RolloutState.DONE, words
    assert set(cluster.lives()) == {"prefill-1", "decode-1"}


def test_an_engine_that_does_not_leave_in_time_is_killed_and_replaced(
    ray_folder: Path, tmp_path: Path, stopped: list[Supervised]
) -> None:
    cluster = Supervised(tmp_path, ["decode-0"], busy=True)
    stopped.append(cluster)
    before = cluster.lives()
    number = cluster.order(DrainEngine("decode-0", restart=True, timeout_s=10.0))
    wait_for(lambda: cluster.look().workers[1].state == "draining", 20, "a drain")
    refusal = "another order is being carried out: decode-0: draining"  # once it has looked again
    wait_for(lambda: refusal in str(cluster.order(RestartEngines())), 10, "a refusal that says why")
    state, words = cluster.ended(number)
    assert state is RolloutState.DONE, words
    assert "decode-0: still there 5 s after its drain's deadline, killed" in words
    assert cluster.lives()["decode-0"] != before["decode-0"]


def test_sigterm_to_an_engines_process_is_a_drain_and_another_life_follows(
    ray_folder: Path, tmp_path: Path, stopped: list[Supervised]
) -> None:
    cluster = Supervised(tmp_path, ["decode-0"])
    stopped.append(cluster)
    before = cluster.lives()["decode-0"]
    os.kill(int((tmp_path / before).read_text()), signal.SIGTERM)
    wait_for(lambda: cluster.look().workers[1].num_restarts == 1, 60, "a restart")
    wait_for(lambda: cluster.all_serve(["decode-0"]), 60, "serving again")
    assert cluster.lives()["decode-0"] != before
    assert cluster.look().workers[1].last_error == f"ended: drained within {DRAIN_S:g} s"


def test_engines_on_a_host_that_ray_takes_away_drain_before_they_are_killed(
    ray_folder: Path, tmp_path: Path, stopped: list[Supervised]
) -> None:
    """The last test of this file: the only host takes no actor any more."""
    import ray
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    cluster = Supervised(tmp_path, ["prefill-0", "decode-0"])
    stopped.append(cluster)
    gcs = GcsClient(address=ray.get_runtime_context().gcs_address)
    node_id = ray.get_runtime_context().get_node_id()
    deadline_ms = int((time.time() + 600) * 1000)
    preempted = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = gcs.drain_node(node_id, preempted, "the host goes away", deadline_ms)
    assert accepted, why

    def waits() -> Any:
        engines = cluster.look().workers[1:]
        return all(w.stage == "waiting for a process" and w.num_restarts == 1 for w in engines)

    wait_for(waits, 60, "engines that wait for another host")
    assert [w.last_error for w in cluster.look().workers[1:]] == ["", ""]  # they left in order
    assert cluster.look().workers[0].state == "serving"  # the bootstrap service is no engine

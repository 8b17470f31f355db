"""Several Ray nodes on this machine, some with slots: who runs where, and what missing slots say."""

import os
import secrets
import shutil
import subprocess
import sys
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
from cluster.orders import ScaleEngines
from tests.support.dummy_worker import DummySettings
from tests.support.ray_token import forget_ray_token
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

TIMEOUT_S = 120.0
STORE_BYTES = 80 << 20


class Fleet:
    """A head without slots, one node for prefill and two for decode with two slots each."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        head = self._options("head")
        head |= {"include_dashboard": False, "temp_dir": str(folder / "ray")}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.head: str = self._cluster.head_node.node_id
        self.prefill = self.add("prefill", pd_prefill=1)
        self.decode = {self.add("decode", pd_decode=2) for _ in range(2)}

    def add(self, role: str, **slots: int) -> str:
        """One more node; its id."""
        node_id: str = self._cluster.add_node(**self._options(role), resources=slots).node_id
        return node_id

    def shutdown(self) -> None:
        self._cluster.shutdown()

    @staticmethod
    def _options(role: str) -> dict[str, Any]:
        return {"num_cpus": 1, "object_store_memory": STORE_BYTES, "labels": {"pd-role": role}}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pds-", dir="/tmp"))  # socket paths are short
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[Fleet]:
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.delenv("RAY_AUTH_TOKEN", raising=False)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        fleet = Fleet(folder)
        ray_session.join(fleet.address)
        yield fleet
        ray_session.leave()
        fleet.shutdown()
    forget_ray_token()


class Placed:
    """A supervisor of dummies, and where they run."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        from cluster.supervisor_child import SupervisorChild

        endpoint = f"tcp://127.0.0.1:{runtime.free_port('127.0.0.1')}"
        service = BootstrapSettings(endpoint, None)
        specs = [
            WorkerSpec("bootstrap", Role.BOOTSTRAP, "cluster.bootstrap_host:BootstrapHost", service)
        ]
        for name in names:
            settings = DummySettings(name, str(folder), bootstrap=endpoint)
            hosted, role = "tests.support.dummy_worker:DummyWorker", Role(name.partition("-")[0])
            specs.append(WorkerSpec(name, role, hosted, settings))
        arguments = {
            "specs": specs,
            "bootstrap": endpoint,
            "secret_file": None,
            "log": LogSettings(),
            "start_timeout_s": TIMEOUT_S,
            "drain_s": 1.0,
        }
        self._folder = folder
        self.child = SupervisorChild(arguments, time.monotonic())

    def workers(self) -> dict[str, Any]:
        seen = self.child.tend(time.monotonic())
        return {} if seen is None else {worker.worker_id: worker for worker in seen.workers}

    def serving(self, *names: str) -> set[str]:
        """Those of `names` that serve now."""
        workers = self.workers()
        return {name for name in names if name in workers and workers[name].state == "serving"}

    def wait_serving(self, *names: str, count: int | None = None) -> set[str]:
        """Those that serve, once all of `names` do, or `count` of them."""
        wanted = len(names) if count is None else count

        def enough() -> set[str]:
            found = self.serving(*names)
            return found if len(found) == wanted else set()

        return wait_for(enough, TIMEOUT_S, f"{wanted} of {names} serving")

    def node_of(self, name: str) -> str:
        """The id of the node where a worker of that name runs."""
        from ray._private.state import actors

        # A supervisor that does not answer within its time shows no workers at all.
        worker = wait_for(lambda: self.workers().get(name), TIMEOUT_S, f"a look at {name}")
        pid = int((self._folder / worker.incarnation).read_text())
        (node,) = {a["Address"]["NodeID"] for a in actors().values() if a["Pid"] == pid}
        return str(node)

    def stop(self) -> None:
        self.child.ask_to_stop()
        wait_for(self.child.has_ended, TIMEOUT_S, "the supervisor's end")


@pytest.fixture
def placed(fleet: Fleet, folder: Path) -> Iterator[Placed]:
    found = Placed(folder, ["prefill-0", "decode-0", "decode-1"])
    yield found
    found.stop()


def test_engines_run_in_slots_of_their_role_spread_over_the_hosts(
    fleet: Fleet, placed: Placed
) -> None:
    placed.wait_serving("prefill-0", "decode-0", "decode-1")
    assert placed.node_of("prefill-0") == fleet.prefill
    assert {placed.node_of("decode-0"), placed.node_of("decode-1")} == fleet.decode

    placed.child.order(ScaleEngines(decode=5))
    new = ("decode-2", "decode-3", "decode-4")
    first = placed.wait_serving(*new, count=2)  # Ray says which
    (last,) = set(new) - first
    missing = "waiting for a slot: 1 of 5 pd_decode missing; nodes offer: "
    words = wait_for(
        lambda: next((w.stage for w in placed.workers().values() if missing in w.stage), None),
        TIMEOUT_S,
        "the missing slot named",
    )
    assert words.count("(head) none") == 1
    assert words.count("(prefill) 1 pd_prefill") == 1
    assert words.count("(decode) 2 pd_decode") == 2

    late = fleet.add("decode", pd_decode=1)
    placed.wait_serving(last)
    assert placed.node_of(last) == late


_JOIN_WITH_OTHER_VERSIONS = """
import sys
import ray
sys.argv, version, ray.__version__ = sys.argv[1:], ray.__version__, "2.0.1"
from bootstrap.errors import ConfigError
from cluster import ray_session
try:
    ray_session.join(sys.argv[0])
except ConfigError as error:
    assert "\\n" not in str(error)
    assert f"Ray: {version}" in str(error) and "Ray: 2.0.1" in str(error), error
    assert str(error).count("Python: 3.") == 2, error
    print("refused")
"""


def test_unequal_versions_are_refused_and_both_are_named(fleet: Fleet) -> None:
    command = [sys.executable, "-c", _JOIN_WITH_OTHER_VERSIONS, fleet.address]
    done = subprocess.run(
        command, env=dict(os.environ), stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S
    )
    assert done.stdout == "refused\n"

"""The bootstrap service and its clients over real sockets, through restarts and deaths."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bootstrap.client import BootstrapClient, Registration
from bootstrap.directory import DirectoryEvent, Fenced, Joined, Left, LoadsChanged
from bootstrap.errors import BootstrapUnreachable, ConfigError, LocalMisuse
from bootstrap.identity import WorkerRef
from bootstrap.membership import LeaveReason, WorkerLoad, WorkerState
from bootstrap.security import Security
from bootstrap.service import BootstrapService
from tests.support.bootstrap_facts import make_info, make_peer, make_ref
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
SECURITY = Security.from_secret(b"0123456789abcdef")
LEASE_S = 1.0
PATIENT_LEASE_S = 3.0  # where nobody's lease is meant to end
GRACE_S = 6.0  # longer than a stall of the machine
START_S = 60.0  # of a process


class Node:
    """A client and the events it told."""

    def __init__(self, client: Callable[[Callable[[DirectoryEvent], None]], BootstrapClient]):
        self.events: list[DirectoryEvent] = []
        self.client = client(self.events.append)

    @property
    def refs(self) -> set[WorkerRef]:
        """Whom this node knows."""
        return {member.info.peer.ref for member in self.client.members()}

    def told(self, kind: type[DirectoryEvent]) -> list[DirectoryEvent]:
        """Events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def left(self) -> list[tuple[WorkerRef, LeaveReason]]:
        """Who left and why."""
        return [(event.ref, event.reason) for event in self.events if isinstance(event, Left)]


class Cluster:
    """A service that may restart at its endpoint, nodes, and worker processes."""

    def __init__(self, security: Security | None = None, lease_s: float = LEASE_S) -> None:
        self.security = security
        self.lease_s = lease_s
        self.service = BootstrapService("tcp://127.0.0.1:0", lease_s, security)
        self.service.start()
        self.endpoint = self.service.endpoint
        self.nodes: list[Node] = []
        self.processes: list[subprocess.Popen[str]] = []

    def join(self, ref: WorkerRef, load: Callable[[], WorkerLoad] = WorkerLoad) -> Node:
        """A member in this process."""
        peer = make_peer(ref)
        registration = Registration(make_info(peer), load)
        node = Node(
            lambda on_event: BootstrapClient(
                self.endpoint, peer, self.security, on_event, registration
            )
        )
        return self._started(node)

    def watch(self) -> Node:
        """A subscriber that is no member."""
        peer = make_peer(make_ref("watcher"))
        return self._started(
            Node(lambda tell: BootstrapClient(self.endpoint, peer, self.security, tell))
        )

    def spawn(self, worker_id: str) -> subprocess.Popen[str]:
        """A member in a process of its own whose interpreter is never idle."""
        command = [sys.executable, "-m", "tests.support.bootstrap_worker", self.endpoint, worker_id]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def restart(self) -> None:
        """A new life of the service, empty, at the same endpoint."""
        self.service.stop()
        self.service = BootstrapService(self.endpoint, self.lease_s, self.security)
        self.service.start()

    def close(self) -> None:
        """End everything."""
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for node in self.nodes:
            node.client.stop(unregister=False)
        self.service.stop()

    def _started(self, node: Node) -> Node:
        self.nodes.append(node)
        node.client.start()
        return node


@pytest.fixture(params=[None, SECURITY], ids=["plain", "curve"])
def any_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    opened = Cluster(request.param)
    yield opened
    opened.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    opened = Cluster()
    yield opened
    opened.close()


@pytest.fixture
def patient_cluster() -> Iterator[Cluster]:
    opened = Cluster(lease_s=PATIENT_LEASE_S)
    yield opened
    opened.close()


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bootstrap.directory.MIN_GRACE_S", GRACE_S)


def test_members_meet_and_part(any_cluster: Cluster) -> None:
    refs = [make_ref(f"w{number}") for number in range(3)]
    watcher = any_cluster.watch()
    nodes = [any_cluster.join(ref) for ref in refs]
    for node in (watcher, *nodes):
        node.client.wait_ready(20.0)
        wait_for(lambda n=node: n.refs == set(refs))  # type: ignore[misc]
        wait_for(lambda n=node: n.client.connected)  # type: ignore[misc]
    nodes[0].client.stop()
    wait_for(lambda: watcher.left() == [(refs[0], LeaveReason.UNREGISTERED)])
    assert watcher.refs == set(refs[1:])
    assert len(watcher.told(Joined)) == 3


def test_clients_may_start_long_before_the_service(cluster: Cluster) -> None:
    cluster.service.stop()
    ref = make_ref("early")
    early = cluster.join(ref)
    wait_for(lambda: early.client.counters()["unsent"] > 2)
    assert not early.client.connected
    with pytest.raises(BootstrapUnreachable, match="no answer"):
        early.client.wait_ready(0.01)
    cluster.restart()
    early.client.wait_ready(20.0)
    wait_for(lambda: early.refs == {ref})


def test_loads_travel_and_draining_is_told_at_once(cluster: Cluster) -> None:
    load = WorkerLoad(num_running=3, pages={"free": 7})
    ref = make_ref("w")
    member, watcher = cluster.join(ref, lambda: load), cluster.watch()
    wait_for(lambda: [m.load for m in watcher.client.members()] == [load])
    load = WorkerLoad(state=WorkerState.DRAINING)
    member.client.beat()
    wait_for(lambda: LoadsChanged(((ref, load),)) in watcher.events)


def test_a_killed_process_is_noticed_though_it_never_says_goodbye(cluster: Cluster) -> None:
    watcher, process = cluster.watch(), cluster.spawn("victim")
    (ref,) = wait_for(lambda: watcher.refs, START_S)
    process.kill()
    wait_for(lambda: watcher.left() == [(ref, LeaveReason.LEASE_EXPIRED)])
    assert watcher.refs == set()


def test_a_busy_process_keeps_its_lease(patient_cluster: Cluster) -> None:
    watcher = patient_cluster.watch()
    patient_cluster.spawn("busy")
    wait_for(lambda: watcher.refs, START_S)
    num_reports = len(watcher.told(LoadsChanged))
    wait_for(lambda: len(watcher.told(LoadsChanged)) >= num_reports + 12, 60.0)  # over two leases
    assert watcher.left() == []


def test_a_paused_process_leaves_and_comes_back(cluster: Cluster) -> None:
    watcher, process = cluster.watch(), cluster.spawn("pausing")
    (ref,) = wait_for(lambda: watcher.refs, START_S)
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: watcher.left() == [(ref, LeaveReason.LEASE_EXPIRED)])
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: watcher.refs == {ref})


def test_a_restarted_process_replaces_its_earlier_life(cluster: Cluster) -> None:
    watcher, process = cluster.watch(), cluster.spawn("phoenix")
    (old,) = wait_for(lambda: watcher.refs, START_S)
    process.kill()
    process.wait()
    cluster.spawn("phoenix")
    new = wait_for(lambda: watcher.refs - {old}, START_S)
    wait_for(lambda: (old, LeaveReason.REPLACED) in watcher.left())
    assert watcher.refs == new


@pytest.mark.usefixtures("grace")
def test_service_restart_makes_nobody_leave(any_cluster: Cluster) -> None:
    refs = {make_ref(f"w{number}") for number in range(3)}
    watcher, nodes = any_cluster.watch(), [any_cluster.join(ref) for ref in sorted(refs)]
    for node in (watcher, *nodes):
        wait_for(lambda n=node: n.refs == refs)  # type: ignore[misc]
    for _ in range(2):
        any_cluster.restart()
        newcomer = any_cluster.watch()  # hears only of whom the new life knows
        wait_for(lambda n=newcomer: n.refs == refs)  # type: ignore[misc]
    grace_is_over = time.monotonic() + GRACE_S + 0.5
    wait_for(lambda: time.monotonic() > grace_is_over)
    for node in (watcher, *nodes):
        assert node.refs == refs
        assert node.left() == []
        assert len(node.told(Joined)) == len(refs)


@pytest.mark.usefixtures("grace")
def test_who_dies_with_the_service_leaves_after_the_grace(cluster: Cluster) -> None:
    watcher, survivor = cluster.watch(), make_ref("survivor")
    cluster.join(survivor)
    mortal = cluster.join(make_ref("mortal"))
    wait_for(lambda: len(watcher.refs) == 2)
    cluster.service.stop()
    mortal.client.stop(unregister=False)
    cluster.restart()
    wait_for(lambda: [r for _, r in watcher.left()] == [LeaveReason.NOT_ANNOUNCED])
    assert watcher.refs == {survivor}


def test_eviction_waits_for_the_service_and_fences_the_evicted(cluster: Cluster) -> None:
    watcher, ref = cluster.watch(), make_ref("w")
    evicted = cluster.join(ref)
    wait_for(lambda: watcher.refs == {ref} and evicted.refs == {ref})
    cluster.service.stop()
    watcher.client.evict(ref)
    cluster.restart()
    wait_for(lambda: evicted.told(Fenced) == [Fenced(LeaveReason.EVICTED)])
    wait_for(lambda: watcher.left()[-1:] == [(ref, LeaveReason.EVICTED)])
    assert watcher.refs == set()


def test_the_older_of_two_lives_is_fenced(cluster: Cluster) -> None:
    old_ref, new_ref = make_ref("twin"), make_ref("twin")
    old = cluster.join(old_ref)
    wait_for(lambda: old.refs == {old_ref})
    new = cluster.join(new_ref)
    wait_for(lambda: old.told(Fenced) == [Fenced(LeaveReason.REPLACED)])
    cluster.restart()
    newcomer = cluster.watch()  # hears only of whom the new life knows
    wait_for(lambda: newcomer.refs == {new_ref})
    wait_for(lambda: new.refs == {new_ref} and new.client.connected)
    assert (new_ref, LeaveReason.REPLACED) not in new.left()


def test_errors_of_the_owner_cost_no_lease(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> WorkerLoad:
        raise RuntimeError("no load today")

    ref, watcher = make_ref("w"), cluster.watch()
    member = cluster.join(ref, broken)
    wait_for(lambda: watcher.refs == {ref})
    wait_for(lambda: member.client.counters()["callback_errors"] > 6)
    assert watcher.left() == []
    assert "no load today" in caplog.text


def test_without_the_secret_nobody_joins_and_the_rest_are_served() -> None:
    inside = Cluster(SECURITY)
    outside: list[Node] = []
    try:
        for security in (None, Security.from_secret(b"fedcba9876543210")):
            peer = make_peer(make_ref("stranger"))
            registration = Registration(make_info(peer), WorkerLoad)
            node = Node(
                lambda tell, s=security, p=peer, r=registration: BootstrapClient(  # type: ignore[misc]
                    inside.endpoint, p, s, tell, r
                )
            )
            outside.append(node)
            node.client.start()
            wait_for(lambda n=node: n.client.counters()["handshakes_failed"])  # type: ignore[misc]
        ref = make_ref("member")
        member = inside.join(ref)
        wait_for(lambda: member.refs == {ref})
        assert all(node.refs == set() and not node.client.connected for node in outside)
    finally:
        for node in outside:
            node.client.stop()
        inside.close()


def test_impossible_settings_are_refused(cluster: Cluster) -> None:
    for endpoint in ("127.0.0.1:1", "tcp://127.0.0.1", "tcp://:1", "tcp://127.0.0.1:http"):
        with pytest.raises(ConfigError, match="bootstrap="):
            BootstrapService(endpoint)
    with pytest.raises(ConfigError, match="secret_file"):
        BootstrapService("tcp://0.0.0.0:0")
    with pytest.raises(ConfigError, match="lease_s"):
        BootstrapService("tcp://127.0.0.1:0", lease_s=0.0)
    peer = make_peer(make_ref("w"))
    with pytest.raises(ConfigError, match="bootstrap="):
        BootstrapClient("tcp://nowhere", peer, None, lambda event: None).start()
    stranger = Registration(make_info(make_peer(make_ref("other"))), WorkerLoad)
    with pytest.raises(LocalMisuse, match="registers"):
        BootstrapClient(cluster.endpoint, peer, None, lambda event: None, stranger)


def test_a_taken_port_is_refused_after_a_while(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bootstrap.service.BIND_RETRY_S", 0.3)
    with pytest.raises(ConfigError, match="Address already in use"):
        BootstrapService(cluster.endpoint).start()


def test_the_service_alone_as_a_program(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    secret.chmod(0o600)
    command = [sys.executable, "-m", "bootstrap", "--bind", "tcp://127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--secret-file", str(secret)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    client = BootstrapClient(
        process.stdout.readline().strip(), make_peer(make_ref("w")), SECURITY, lambda event: None
    )
    client.start()
    client.wait_ready(20.0)
    client.stop()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60.0) == 0
    process.stdout.close()

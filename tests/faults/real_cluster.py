"""A whole cluster of real processes that can be killed, stopped, held at a step and cut off.

Stands in for the supervisor in one thing: it sees a process end and tells the bootstrap service, as the
real one does. Whether the dead are replaced is the test's to say. Everything else is the product.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported

import httpx
import openai

from bootstrap.client import BootstrapClient
from bootstrap.identity import Peer, WorkerRef, new_incarnation
from cluster.runtime import free_port
from tests.faults.real_child import ChildSpec, Hold, run_child
from tests.faults.real_links import Link, Links
from tests.support.process_cluster import TINY
from tests.support.waiting import wait_for

MODEL_NAME = "tiny"
ROLES = {"p": "prefill", "d": "decode", "lb": "balancer", "bootstrap": "bootstrap"}

_ROOT = Path(__file__).resolve().parent.parent.parent
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["tests.faults.real_child"])


@dataclass(slots=True, eq=False)
class RealProcess:
    """One life of one process."""

    name: str
    process: Any
    parent_end: Connection
    incarnation: str = ""
    started_at: float = field(default_factory=time.monotonic)
    stopped: bool = False
    held: threading.Event = field(default_factory=threading.Event)
    towards: str = ""  # whom the held step concerns
    _num_orders: int = 0
    _num_armed: int = 0  # orders that it has taken, one after the other

    @property
    def pid(self) -> int:
        """Of the operating system."""
        return int(self.process.pid)

    @property
    def ref(self) -> WorkerRef:
        """Who it is in the cluster; engines only."""
        assert self.incarnation, f"{self.name} has not said who it is"
        return WorkerRef(self.name, self.incarnation)

    def hold(self, hold: Hold | None) -> None:
        """Have it stop at a step; None lets it go on."""
        self._order(hold)
        wait_for(lambda: self._num_armed == self._num_orders, 60.0, f"{self.name} takes orders")

    def let_go(self) -> None:
        """End a hold of a process that may be dead or stopped."""
        with contextlib.suppress(OSError):
            self._order(None)

    def _order(self, hold: Hold | None) -> None:
        self.parent_end.send(hold)
        self._num_orders += 1

    def wait_held(self, timeout_s: float = 60.0) -> None:
        """Block until it stands at its step."""
        assert self.held.wait(timeout_s), f"{self.name} never came to its step"

    def listen(self, link: Link | None) -> None:
        """On a thread of its own: what the process says."""
        while True:
            try:
                word, value = self.parent_end.recv()
            except (EOFError, OSError):
                return
            if word == "bound" and link is not None:
                link.lead_to(value)
            elif word == "serving":
                self.incarnation = value
            elif word == "armed":
                self.held.clear()
                self._num_armed += 1
            elif word == "held":
                self.towards = "lb" if value.startswith("balancer") else value
                self.held.set()


class RealCluster:
    """Engines `p0...` and `d0...`, `lb` and `bootstrap`; ready when the `with` block is entered.

    With `links` every inbox is reached through `links[name]`, and the bootstrap service by each other
    process through `links["NAME>bootstrap"]`.
    """

    def __init__(
        self,
        model_dir: Path,
        folder: Path,
        *,
        num_prefill: int = 2,
        num_decode: int = 2,
        links: bool = False,
        roles: dict[str, dict[str, Any]] | None = None,
        **engines: Any,
    ) -> None:
        """`engines` are EngineSettings of all; `roles` are more settings, by role."""
        self._model_dir, self._folder = model_dir, folder
        roles = roles or {}
        engines = {**TINY, "num_blocks": 1024, "transfer": "nixl", **engines}
        self._settings = {
            "prefill": {**engines, **roles.get("prefill", {})},
            "decode": {**engines, **roles.get("decode", {})},
            "balancer": {"shutdown_grace_s": 0.0, **roles.get("balancer", {})},
        }
        self._names = ["bootstrap", *(f"p{i}" for i in range(num_prefill))]
        self._names += [*(f"d{i}" for i in range(num_decode)), "lb"]
        self._closers = ExitStack()
        self._linked = links
        self.links: dict[str, Link] = {}
        self.processes: dict[str, RealProcess] = {}
        self.deaths: list[tuple[str, float]] = []  # (name, when seen)
        self.respawning = False  # start a new life of whatever dies
        self._lock = threading.RLock()  # guards the processes against the watcher
        self._ending = False

    def __enter__(self) -> "RealCluster":
        with ExitStack() as undo:
            undo.push(self._closers)
            self._closers.enter_context(_importable())
            if self._linked:
                self._relay = self._closers.enter_context(Links())
                for name in self._names:
                    self.links[name] = self._relay.new()
                    self.links[f"{name}>bootstrap"] = self._relay.new()
            self._bootstrap, self._http = free_port("127.0.0.1"), free_port("127.0.0.1")
            self._closers.callback(self._end_all)
            for name in self._names:
                self.start(name)
            self._watch()
            self.wait_members(len(self._names) - 2)
            self.wait_ready()
            undo.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._closers.__exit__(*error)

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"http://127.0.0.1:{self._http}"

    def client(self, timeout_s: float = 60.0) -> openai.OpenAI:
        """The official client; no retries, so that errors are seen."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=timeout_s
        )

    # --- processes -----------------------------------------------------------------------------

    def start(self, name: str, *, moved: bool = False) -> RealProcess:
        """A new life. With links it listens at the old address unless it `moved`; without, engines
        always listen at a new one, the others at the old one."""
        role = ROLES[name.rstrip("0123456789")]
        if moved:
            self.links[name] = self._relay.new()
        link = self.links.get(name) if role != "bootstrap" else None
        spec = ChildSpec(role, self._settings_of(name, role), str(self._folder / f"{name}.log"))
        if link is not None:
            spec = replace(spec, address=link.endpoint)
        parent_end, child_end = _fork.Pipe()
        process = _fork.Process(target=run_child, args=(spec, child_end), daemon=True, name=name)
        process.start()
        child_end.close()
        life = RealProcess(name, process, parent_end)
        threading.Thread(target=life.listen, args=(link,), daemon=True).start()
        with self._lock:
            self.processes[name] = life
        if role == "bootstrap":
            for other in self._names:
                if f"{other}>bootstrap" in self.links:
                    self.links[f"{other}>bootstrap"].lead_to(f"tcp://127.0.0.1:{self._bootstrap}")
        return life

    def signal(self, name: str, number: int) -> RealProcess:
        """Send a signal; the process that got it."""
        life = self.processes[name]
        life.stopped = number == signal.SIGSTOP or (life.stopped and number != signal.SIGCONT)
        os.kill(life.pid, number)
        return life

    def kill(self, name: str) -> float:
        """SIGKILL, and wait until the process is gone; when it was."""
        life = self.signal(name, signal.SIGKILL)
        life.process.join(60)
        return time.monotonic()

    def stop(self, name: str) -> float:
        """SIGSTOP; when."""
        self.signal(name, signal.SIGSTOP)
        return time.monotonic()

    def resume(self, name: str) -> float:
        """SIGCONT; when."""
        self.signal(name, signal.SIGCONT)
        return time.monotonic()

    # --- what the cluster says -----------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        """Members as the balancer sees them; none while it does not answer."""
        try:
            return list(httpx.get(f"{self.url}/status", timeout=2).json()["members"])
        except (httpx.HTTPError, ValueError):
            return []

    def members(self) -> dict[str, str]:
        """Incarnation by worker id, as the balancer sees them."""
        return {m["worker"]: m["incarnation"] for m in self.status()}

    def knows(self, life: RealProcess) -> bool:
        """Whether the balancer counts this life as a member."""
        return self.members().get(life.name) == life.incarnation

    def misses(self, life: RealProcess) -> bool:
        """Whether the balancer answers and counts this life as a member no more."""
        members = self.members()
        return bool(members) and members.get(life.name) != life.incarnation

    def idle(self) -> bool:
        """Whether no engine has a room, and every page is free or cached, by the last heartbeats."""
        status = self.status()
        return bool(status) and all(
            member["num_rooms"] == 0
            and {state for state, n in member["pages"].items() if n} <= {"free", "cached"}
            for member in status
        )

    def wait_members(self, count: int, timeout_s: float = 120.0) -> None:
        """Until so many engines are members; a process that ended by itself is told with its log."""

        def all_there() -> bool:
            for life in list(self.processes.values()):
                code = life.process.exitcode
                if code not in (None, -signal.SIGKILL) and not self.respawning:
                    raise AssertionError(f"{life.name}: {code}\n{self.log_of(life.name)[-3000:]}")
            return len(self.members()) == count

        wait_for(all_there, timeout_s, f"{count} members")

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Until a real request has passed."""

        def ready() -> bool:
            try:
                return httpx.get(f"{self.url}/ready", timeout=2).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(ready, timeout_s, "readiness")

    def wait_healthy(self, timeout_s: float = 60.0) -> None:
        """Until the balancer takes connections."""

        def healthy() -> bool:
            try:
                return httpx.get(f"{self.url}/health", timeout=2).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(healthy, timeout_s, "a balancer")

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """Until `idle`; tells pages and rooms that are not."""
        deadline = time.monotonic() + timeout_s
        while not self.idle():
            if time.monotonic() > deadline:
                raise AssertionError(f"not idle: {self.status()}")
            time.sleep(0.1)

    def log_of(self, name: str) -> str:
        """All output of a process, all its lives."""
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- inner ---------------------------------------------------------------------------------

    def _settings_of(self, name: str, role: str) -> dict[str, Any]:
        endpoint = f"tcp://127.0.0.1:{self._bootstrap}"
        if role == "bootstrap":
            return {"endpoint": endpoint, "secret_file": None}
        if f"{name}>bootstrap" in self.links:
            endpoint = self.links[f"{name}>bootstrap"].endpoint
        common = {"bootstrap": endpoint, "model_dir": str(self._model_dir)}
        common["model_name"] = MODEL_NAME
        if role == "balancer":
            common |= {"host": "127.0.0.1", "port": self._http}
        else:
            common |= {"worker_id": name}
        return {**common, **self._settings[role]}

    def _watch(self) -> None:
        """See processes end, as a supervisor does."""
        me = Peer(WorkerRef("supervisor", new_incarnation()), f"tcp://127.0.0.1:{self._bootstrap}")
        self._evictor = BootstrapClient(me.endpoint, me, None, lambda event: None)
        self._evictor.start()
        self._closers.callback(self._evictor.stop)
        watcher = threading.Thread(target=self._watch_processes, name="watcher", daemon=True)
        watcher.start()
        self._closers.callback(watcher.join, 10)
        self._closers.callback(self._stop_watching)

    def _stop_watching(self) -> None:
        self._ending = True

    def _watch_processes(self) -> None:
        seen: set[RealProcess] = set()
        while not self._ending:
            with self._lock:
                alive = {p.process.sentinel: p for p in self.processes.values() if p not in seen}
            for sentinel in connection.wait(list(alive), 0.1):
                life = alive[sentinel]  # type: ignore[index]
                seen.add(life)
                if self._ending:
                    return
                self.deaths.append((life.name, time.monotonic()))
                if life.incarnation:
                    self._evictor.evict(life.ref)
                if self.respawning:
                    self.start(life.name)

    def _end_all(self) -> None:
        lives = list(self.processes.values())
        for life in lives:
            if life.process.is_alive():
                os.kill(life.pid, signal.SIGCONT)
                life.let_go()
                life.process.kill()
        for life in lives:
            life.process.join(10)
            life.parent_end.close()


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Let the fork server, which starts with the first process, find this package."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(_ROOT) if before is None else f"{_ROOT}{os.pathsep}{before}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before

"""Engines and the load balancer as real processes, the bootstrap service in this one; no Ray."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from bootstrap.client import BootstrapClient
from bootstrap.identity import Peer, WorkerRef, new_incarnation
from bootstrap.service import BootstrapService
from engine.settings import EngineSettings
from tests.support.http_balancer import HttpBalancer
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL_NAME = "tiny"
# In float64 another batch's rounding moves no token, so texts can be compared whatever happened.
TINY = {"block_size": 4, "num_blocks": 256, "dtype": "float64"}


class ProcessCluster:
    """One process per engine; the balancer in a thread. Ready when the `with` block is entered."""

    def __init__(
        self,
        model_dir: Path,
        log_dir: Path,
        *,
        num_prefill: int = 1,
        num_decode: int = 1,
        prefill: dict[str, Any] | None = None,
        decode: dict[str, Any] | None = None,
        balancer: dict[str, Any] | None = None,
        **both: Any,
    ) -> None:
        self._closers = ExitStack()
        self.model_dir, self._log_dir = model_dir, log_dir
        both = {**TINY, **both}
        self._settings = {
            "prefill": {**both, **(prefill or {})},
            "decode": {**both, **(decode or {})},
        }
        self._balancer = balancer or {}
        self._counts = {"prefill": num_prefill, "decode": num_decode}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "ProcessCluster":
        with ExitStack() as undo:
            undo.push(self._closers)
            self.service = BootstrapService("tcp://127.0.0.1:0")
            self.service.start()
            self._closers.callback(self.service.stop)
            for role, count in self._counts.items():
                for index in range(count):
                    self.start_engine(role, f"{role[0]}{index}")
            self.balancer = self._closers.enter_context(
                HttpBalancer(self.service.endpoint, self.model_dir, MODEL_NAME, **self._balancer)
            )
            self.balancer.wait_ready(60.0)
            total = sum(self._counts.values())
            wait_for(lambda: len(self.members()) == total, 60.0, "all engines")
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closers.close()

    def start_engine(self, role: str, worker_id: str) -> None:
        """Start a process, a new incarnation if the worker lived before."""
        settings = EngineSettings(
            worker_id=worker_id,
            model_dir=str(self.model_dir),
            model_name=MODEL_NAME,
            bootstrap=self.service.endpoint,
            **self._settings[role],
        )
        command = [sys.executable, "-m", "tests.support.engine_process", role]
        log = (self._log_dir / f"{worker_id}.log").open("ab")
        process = subprocess.Popen(
            [*command, json.dumps(asdict(settings))],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        log.close()
        self._processes[worker_id] = process
        self._closers.callback(_end, process)

    def members(self) -> dict[str, WorkerRef]:
        """Who is registered, by worker id, as the balancer sees it."""
        members = self.balancer.get("/status").json()["members"]
        return {m["worker"]: WorkerRef(m["worker"], m["incarnation"]) for m in members}

    def signal(self, worker_id: str, number: int) -> None:
        """Send a signal to an engine's process."""
        self._processes[worker_id].send_signal(number)

    def log_of(self, worker_id: str) -> str:
        """All output of an engine, all its lives."""
        return (self._log_dir / f"{worker_id}.log").read_text(errors="replace")

    def kill(self, worker_id: str) -> None:
        """SIGKILL, wait until the process is gone, and tell the service as a supervisor does."""
        ref = self.members()[worker_id]
        process = self._processes[worker_id]
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        self._evict(ref)

    def idle(self) -> bool:
        """Whether no engine has a room, and every page is free or cached, by their last heartbeats."""
        return all(
            member["num_rooms"] == 0
            and {state for state, n in member["pages"].items() if n} <= {"free", "cached"}
            for member in self.balancer.get("/status").json()["members"]
        )

    def _evict(self, ref: WorkerRef) -> None:
        me = Peer(WorkerRef("test-supervisor", new_incarnation()), self.service.endpoint)
        client = BootstrapClient(self.service.endpoint, me, None, lambda event: None)
        client.start()
        client.wait_ready(60)
        client.evict(ref)
        wait_for(lambda: ref not in {m.info.peer.ref for m in client.members()}, what="eviction")
        client.stop()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(60)
        raise AssertionError(f"engine process {process.pid} ignored SIGTERM") from None

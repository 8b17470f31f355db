"""A whole cluster as its users start it: `pdserve up` in a process of its own."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from cluster.processes import descendants
from kv_transfer.backends.process import start_time
from tests.conftest import ROOT
from tests.support.waiting import wait_for

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0


class UpProcess:
    """Started on entry and ready once `wait_ready` returns; nothing of it lives after exit."""

    def __init__(self, folder: Path, port: int, flags: Sequence[str]) -> None:
        """`folder` is short: Ray puts sockets below it."""
        self.url = f"http://127.0.0.1:{port}"
        self.runtime_dir = folder / "run"
        self._log_path = folder / "up.log"
        self._environment = {**os.environ, "PDSERVE_RUNTIME_DIR": str(self.runtime_dir)}
        self._flags = ["up", "--port", str(port), *flags]
        self._everyone: dict[int, int] = {}  # pid: start time, of all that were ever seen

    def __enter__(self) -> "UpProcess":
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cluster", *self._flags],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if kind is not None:
            print(self.log)  # pytest shows it with the failure

    @property
    def log(self) -> str:
        """All output so far."""
        return self._log_path.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Until the endpoint is announced."""

        def announced() -> bool:
            self.note_processes()
            assert self.process.poll() is None, f"`up` ended:\n{self.log}"
            return "Ctrl-C ends everything" in self.log

        wait_for(announced, START_TIMEOUT_S, "a ready cluster")
        self.note_processes()

    def note_processes(self) -> None:
        """Remember every process below `up`, for `survivors`."""
        for pid in descendants(self.process.pid):
            started = start_time(pid)
            if started is not None:
                self._everyone[pid] = started

    def pid_of(self, command: str) -> int:
        """The process below `up` whose command line holds `command`."""
        for pid in descendants(self.process.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it just ended
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command in line:
                    return pid
        raise AssertionError(f"no process {command!r} below {self.process.pid}")

    def survivors(self) -> list[int]:
        """Pids of those noted that still live."""
        return [pid for pid, started in self._everyone.items() if start_time(pid) == started]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another `pdserve` command of the same user."""
        return subprocess.run(
            [sys.executable, "-m", "cluster", *arguments],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """What `pdserve status --json` prints."""
        facts: dict[str, Any] = json.loads(self.command("status", "--json").stdout)
        return facts

    def members(self) -> list[dict[str, Any]]:
        """Every member, as the balancer sees them now."""
        members: list[dict[str, Any]] = httpx.get(f"{self.url}/status", timeout=60).json()[
            "members"
        ]
        return members

    def incarnations(self) -> dict[str, str]:
        """Of every member, as the balancer sees them now."""
        return {member["worker"]: member["incarnation"] for member in self.members()}

    def is_ready(self) -> bool:
        """Whether requests can be served now."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=60).status_code == http.client.OK
        except httpx.TransportError:
            return False

"""A load balancer as a process of its own, started by the command line that people use."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from cluster import runtime
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent


class BalancerProcess:
    """`pdserve balancer` at one port; may be killed and started again there."""

    def __init__(
        self, bootstrap: str, model_dir: Path, model_name: str, log: Path, **settings: Any
    ) -> None:
        self.port = runtime.free_port("127.0.0.1")
        values = {
            "host": "127.0.0.1",
            "port": self.port,
            "bootstrap": bootstrap,
            "model_dir": str(model_dir),
            "model_name": model_name,
            **settings,
        }
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        self._command = [sys.executable, "-m", "cluster", "balancer", *flags]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "BalancerProcess":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(60)

    def start(self) -> None:
        """Begin a life; does not wait for it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def signal(self, number: int) -> float:
        """Send a signal; when."""
        assert self._process is not None
        self._process.send_signal(number)
        return time.monotonic()

    def wait_ended(self, timeout_s: float = 60.0) -> int:
        """Wait for the process's end; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> float:
        """SIGKILL; when the process was gone."""
        self.signal(signal.SIGKILL)
        self.wait_ended()
        return time.monotonic()

    def get(self, path: str) -> dict[str, Any]:
        """One GET's JSON."""
        body: dict[str, Any] = httpx.get(f"{self.url}{path}", timeout=60).json()
        return body

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Until a real request has passed over a pair."""

        def ready() -> bool:
            try:
                return httpx.get(f"{self.url}/ready", timeout=10).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(ready, timeout_s, f"readiness of {self.url}")

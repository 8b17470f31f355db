"""The load balancer as a child process of `up`, started again whenever it dies.

Owns the process and the thread that passes its lines on. The kernel ends it with `up`.
"""

import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from cluster.runtime import SupervisedWorker
from cluster.supervisor import LifeState, Start, Supervisor

WORKER_ID = "balancer"

log = logging.getLogger(__name__)


class BalancerChild:
    """At most one process; `tend` brings it back after its back-off."""

    def __init__(self, arguments: Sequence[str], now: float) -> None:
        """`arguments` follow `pdserve balancer`."""
        self._command = [sys.executable, "-m", "cluster", "balancer", *arguments]
        self._core = Supervisor([WORKER_ID], now)
        self._process: subprocess.Popen[bytes] | None = None

    def tend(self, now: float) -> None:
        """Notice its death and start it when it is due; call it on the main thread, often.

        The child ends with the thread that started it.
        """
        if self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._process = None
                self._core.died(WORKER_ID, f"exit code {code}", now)
                self._core.gone(WORKER_ID)
                log.error("%s: exit code %d", WORKER_ID, code)
        for started in self._core.reconcile(now):
            assert isinstance(started, Start)
            self._spawn()

    def serving(self, now: float) -> None:
        """The starting process answers for the first time."""
        self._core.serving(WORKER_ID, now)

    def status(self, now: float) -> SupervisedWorker:
        """As the supervisor would tell it."""
        (status,) = self._core.status(now)
        return SupervisedWorker(
            worker_id=WORKER_ID,
            role=WORKER_ID,
            state=status.state.value,
            stage="answering" if status.state is LifeState.SERVING else status.state.value,
            incarnation=None,
            num_restarts=max(0, status.num_starts - 1),
            retry_in_s=round(status.retry_in_s, 1),
            last_error=status.last_error,
        )

    def ask_to_stop(self) -> None:
        """Let it end its streams."""
        if self._process is not None:
            self._process.terminate()

    def has_ended(self) -> bool:
        """Whether no process is left."""
        return self._process is None or self._process.poll() is not None

    def _spawn(self) -> None:
        # A session of its own: Ctrl-C in the terminal is for `up`, which then stops it in order.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        relay = threading.Thread(target=_relay, args=(self._process.stdout,), daemon=True)
        relay.start()


def _relay(lines: IO[bytes]) -> None:
    """Through Python's stderr and not the child's own: it may hold a live display back."""
    with lines:
        for line in lines:
            sys.stderr.write(line.decode(errors="replace"))

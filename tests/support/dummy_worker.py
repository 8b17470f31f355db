"""Workers that serve nothing: what an actor hosts when a test is about actors."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bootstrap.client import BootstrapClient, Registration
from bootstrap.identity import Role, WorkerRef, new_incarnation
from bootstrap.membership import WorkerLoad
from tests.support.members import worker_info


@dataclass(frozen=True, slots=True)
class DummySettings:
    """`folder` receives a file per life, named by incarnation, that holds its pid.

    A busy worker has work that no drain sees the end of. With `bootstrap` the worker is a member.
    """

    worker_id: str
    folder: str
    fail_at_start: str | None = None
    nameless: bool = False
    busy: bool = False
    bootstrap: str | None = None


class DummyWorker:
    """Serves until it is stopped or killed."""

    def __init__(self, settings: DummySettings) -> None:
        if settings.nameless:  # as an import that never ends
            (Path(settings.folder) / f"nameless-{os.getpid()}").touch()
            threading.Event().wait()
        self.ref = WorkerRef(settings.worker_id, new_incarnation())
        self._settings = settings
        self._farewell = "stopped"
        self._stopped = threading.Event()
        self._client: BootstrapClient | None = None

    def start(self, on_stage: Callable[[str], None] | None = None) -> None:
        """Leave a trace of this life, then fail if told to."""
        folder = Path(self._settings.folder)
        partial = folder / f".{self.ref.incarnation}"
        partial.write_text(str(os.getpid()))
        partial.rename(folder / self.ref.incarnation)
        if self._settings.fail_at_start is not None:
            raise RuntimeError(self._settings.fail_at_start)
        if self._settings.bootstrap is not None:
            role = Role(self.ref.worker_id.partition("-")[0])
            info = worker_info(self.ref.worker_id, role, incarnation=self.ref.incarnation)
            registration = Registration(info, WorkerLoad)
            client = BootstrapClient(
                self._settings.bootstrap, info.peer, None, lambda event: None, registration
            )
            client.start()
            self._client = client
        if on_stage is not None:
            on_stage("serving nothing")

    def wait(self) -> str:
        """Block until the end."""
        self._stopped.wait()
        return self._farewell

    def drain(self, deadline_s: float) -> None:
        """There is nothing to finish unless it is busy."""
        self._farewell = f"drained within {deadline_s:g} s"
        if not self._settings.busy:
            self._stopped.set()

    def stop(self) -> None:
        """Idempotent."""
        self._stopped.set()
        if self._client is not None:
            self._client.stop()

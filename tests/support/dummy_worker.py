"""Workers that serve nothing: what an actor hosts when a test is about actors."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bootstrap.identity import WorkerRef, new_incarnation


@dataclass(frozen=True, slots=True)
class DummySettings:
    """`folder` receives a file per life, named by incarnation, that holds its pid."""

    worker_id: str
    folder: str
    fail_at_start: str | None = None
    nameless: bool = False


class DummyWorker:
    """Serves until it is stopped or killed."""

    def __init__(self, settings: DummySettings) -> None:
        if settings.nameless:  # as an import that never ends
            (Path(settings.folder) / f"nameless-{os.getpid()}").touch()
            threading.Event().wait()
        self.ref = WorkerRef(settings.worker_id, new_incarnation())
        self._settings = settings
        self._stopped = threading.Event()

    def start(self, on_stage: Callable[[str], None] | None = None) -> None:
        """Leave a trace of this life, then fail if told to."""
        folder = Path(self._settings.folder)
        partial = folder / f".{self.ref.incarnation}"
        partial.write_text(str(os.getpid()))
        partial.rename(folder / self.ref.incarnation)
        if self._settings.fail_at_start is not None:
            raise RuntimeError(self._settings.fail_at_start)
        if on_stage is not None:
            on_stage("serving nothing")

    def wait(self) -> None:
        """Block until `stop`."""
        self._stopped.wait()

    def stop(self) -> None:
        """Idempotent."""
        self._stopped.set()

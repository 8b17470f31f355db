"""The bootstrap service in the shape that an actor hosts.

Owns the wait for its end; the service itself is `bootstrap.service`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from bootstrap.identity import WorkerRef, new_incarnation
from bootstrap.security import Security
from bootstrap.service import BootstrapService

WORKER_ID = "bootstrap"


@dataclass(frozen=True, slots=True)
class BootstrapSettings:
    """Where the service listens: the same place in every life, so that all find it again."""

    endpoint: str
    secret_file: str | None


class BootstrapHost:
    """One life of the service."""

    def __init__(self, settings: BootstrapSettings) -> None:
        self.ref = WorkerRef(WORKER_ID, new_incarnation())
        self._settings = settings
        self._service: BootstrapService | None = None
        self._stopped = threading.Event()

    def start(self, on_stage: Callable[[str], None] | None = None) -> None:
        """Listen. Raises ConfigError when another program keeps the port."""
        secret_file = self._settings.secret_file
        security = None if secret_file is None else Security.from_file(secret_file)
        self._service = BootstrapService(self._settings.endpoint, security=security)
        self._service.start()
        if on_stage is not None:
            on_stage(f"serving on {self._service.endpoint}")

    def wait(self) -> str:
        """Block until `stop`."""
        self._stopped.wait()
        return "stopped"

    def drain(self, deadline_s: float) -> None:
        """What it knows is soft: there is nothing to finish."""
        self.stop()

    def stop(self) -> None:
        """Close the socket. Idempotent."""
        self._stopped.set()
        if self._service is not None:
            self._service.stop()

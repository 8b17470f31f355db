"""The actors: thin shells that import, build and host one worker in their own process.

Owns the order import -> start -> wait -> stop, the environment of the process, and the stage that
others may ask for. Knows nothing of Ray (the supervisor actor makes these classes remote) nor of
what a worker does; nothing heavy is imported until `run`, so an actor exists at once.
"""

import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Protocol
from urllib.parse import urlsplit

from bootstrap.errors import ConfigError
from bootstrap.identity import Role, WorkerRef
from cluster import logs
from cluster.logs import DEFAULT_LOG, LogSettings
from cluster.placement import check_addresses
from kv_transfer.backends.process import ProcessTag, this_process

NODE_ADDRESS = "node"  # a `bind_host` that each actor replaces by its own node's address

log = logging.getLogger(__name__)


class Hosted(Protocol):
    """What an actor can host. The constructor takes the spec's settings and is cheap."""

    @property
    def ref(self) -> WorkerRef:
        """This life's identity; valid from construction."""
        ...

    def start(self, on_stage: Callable[[str], None] | None = None) -> None:
        """Get ready to serve; blocks."""
        ...

    def wait(self) -> str:
        """Block until the end and tell what it came to; raises what broke the worker."""
        ...

    def drain(self, deadline_s: float) -> None:
        """Make `wait` return once all work is done, or `deadline_s` from now. Idempotent."""
        ...

    def stop(self) -> None:
        """End and release everything. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One desired worker; small enough to be an actor's constructor argument.

    `hosted` is `package.module:Class`, built with `settings`, a dataclass; when its `bind_host` is
    NODE_ADDRESS the actor puts its own node's address there. `drain_s` is what a worker that is told
    to end by a signal has for its work.
    """

    worker_id: str
    role: Role
    hosted: str
    settings: Any
    log: LogSettings = DEFAULT_LOG
    drain_s: float = 0.0


def spec_like(model: WorkerSpec, worker_id: str) -> WorkerSpec:
    """Another worker of the same kind."""
    settings = replace(model.settings, worker_id=worker_id)
    return replace(model, worker_id=worker_id, settings=settings)


@dataclass(frozen=True, slots=True)
class Report:
    """What an actor says of itself when asked."""

    stage: str
    ref: WorkerRef | None = None
    serving: bool = False
    process: ProcessTag | None = None  # None before there is one


class WorkerActor:
    """Hosts one life of one worker. `run` is called once; the other methods at any time, beside it.

    SIGTERM drains the worker, a second one stops it.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        # Read when the numeric libraries load, which is in `run`; Ray sets it to 1.
        os.environ["OMP_NUM_THREADS"] = str(getattr(spec.settings, "num_threads", 1))
        logs.configure(spec.role, spec.worker_id, spec.log)
        self._spec = spec
        self._report = Report("importing", process=this_process())
        self._worker: Hosted | None = None
        self._lock = threading.Lock()  # guards the worker against a stop that comes during a start
        self._stopped = False
        self._drained = False
        if threading.current_thread() is threading.main_thread():  # as it is in Ray's processes
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def run(self) -> str:
        """Live: returns what the end came to, raises when the worker failed to start or broke."""
        worker = self._build()
        if worker is None:
            return "stopped before it began"
        try:
            worker.start(self._on_stage)
            self._report = replace(self._report, serving=True)
            return worker.wait()
        finally:
            worker.stop()

    def report(self) -> Report:
        """Where this life stands; an answer is also the sign that the process is not stuck."""
        return self._report

    def drain(self, deadline_s: float) -> None:
        """Let a worker that serves do its work, for so long at most; end one that does not. Idempotent."""
        worker = self._worker
        if worker is None or not self._report.serving:
            self.stop()
        elif not self._drained:
            self._drained = True
            self._on_stage("draining")
            worker.drain(deadline_s)

    def stop(self) -> None:
        """End the worker; `run` returns."""
        with self._lock:
            self._stopped = True
            worker = self._worker
        if worker is not None:
            worker.stop()

    def _build(self) -> Hosted | None:
        worker: Hosted = load_class(self._spec.hosted)(self._settings())
        ref = worker.ref
        logs.configure(self._spec.role, ref.worker_id, self._spec.log, ref.incarnation)
        with self._lock:
            if self._stopped:
                return None
            self._worker = worker
        self._report = replace(self._report, stage="starting", ref=ref)
        return worker

    def _settings(self) -> Any:
        settings = self._spec.settings
        if getattr(settings, "bind_host", None) == NODE_ADDRESS:
            import ray  # not at the top: only actors on several hosts need it here

            address = ray.util.get_node_ip_address()
            check_addresses([address, urlsplit(settings.bootstrap).hostname or ""])
            return replace(settings, bind_host=address)
        return settings

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        if self._drained:
            self.stop()
        else:
            self.drain(self._spec.drain_s)

    def _on_stage(self, stage: str) -> None:
        log.info("%s", stage)
        self._report = replace(self._report, stage=stage)


class PrefillActor(WorkerActor):
    """Hosts a prefill engine; its own class so that Ray's tools show the role."""


class DecodeActor(WorkerActor):
    """Hosts a decode engine."""


class BootstrapActor(WorkerActor):
    """Hosts the bootstrap service."""


ACTORS: dict[Role, type[WorkerActor]] = {
    Role.PREFILL: PrefillActor,
    Role.DECODE: DecodeActor,
    Role.BOOTSTRAP: BootstrapActor,
}


def load_class(path: str) -> Callable[[Any], Any]:
    """The class at `package.module:Class`; raises ConfigError when there is none."""
    module_name, _, class_name = path.partition(":")
    module = importlib.import_module(module_name)
    found: Callable[[Any], Any] | None = getattr(module, class_name, None)
    if found is None:
        raise ConfigError(f"hosted={path!r}: {module_name} has no {class_name!r}")
    return found

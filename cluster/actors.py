"""The actors: thin shells that import, build and host one worker in their own process.

Owns the order import -> start -> wait -> stop, the environment of the process, and the stage that
others may ask for. Knows nothing of Ray (the supervisor actor makes these classes remote) nor of
what a worker does; nothing heavy is imported until `run`, so an actor exists at once.
"""

import importlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bootstrap.errors import ConfigError
from bootstrap.identity import Role, WorkerRef
from cluster import logs
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

    def wait(self) -> None:
        """Block until `stop`; raises what broke the worker, if something did."""
        ...

    def stop(self) -> None:
        """End and release everything. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One desired worker; small enough to be an actor's constructor argument.

    `hosted` is `package.module:Class`, built with `settings`, a dataclass; when its `bind_host` is
    NODE_ADDRESS the actor puts its own node's address there.
    """

    worker_id: str
    role: Role
    hosted: str
    settings: Any
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class Report:
    """What an actor says of itself when asked."""

    stage: str
    ref: WorkerRef | None = None
    serving: bool = False
    process: ProcessTag | None = None  # None before there is one


class WorkerActor:
    """Hosts one life of one worker. `run` is called once; the other methods at any time, beside it."""

    def __init__(self, spec: WorkerSpec) -> None:
        # Read when the numeric libraries load, which is in `run`; Ray sets it to 1.
        os.environ["OMP_NUM_THREADS"] = str(getattr(spec.settings, "num_threads", 1))
        logs.configure(spec.role, spec.worker_id, spec.log_level)
        self._spec = spec
        self._report = Report("importing", process=this_process())
        self._worker: Hosted | None = None
        self._lock = threading.Lock()  # guards the worker against a stop that comes during a start
        self._stopped = False

    def run(self) -> None:
        """Live: returns after `stop`, raises when the worker failed to start or broke."""
        worker = self._build()
        if worker is None:
            return
        try:
            worker.start(self._on_stage)
            self._report = replace(self._report, serving=True)
            worker.wait()
        finally:
            worker.stop()

    def report(self) -> Report:
        """Where this life stands; an answer is also the sign that the process is not stuck."""
        return self._report

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
        logs.configure(self._spec.role, ref.worker_id, self._spec.log_level, ref.incarnation)
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

            return replace(settings, bind_host=ray.util.get_node_ip_address())
        return settings

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

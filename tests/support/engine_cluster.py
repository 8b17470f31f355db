"""A bootstrap service and engines in threads of this process, without Ray, for a look inside them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from bootstrap.identity import Role
from bootstrap.service import BootstrapService
from decode.core import DecodeCore
from decode.worker import DecodeWorker
from engine.core import StepPlan, StepResult
from engine.host import EngineHost
from engine.loop import Stepper
from engine.settings import EngineSettings
from engine.stepper import ModelStepper
from prefill.core import PrefillCore
from prefill.worker import PrefillWorker
from tests.support.process_cluster import TINY
from tests.support.scripted_model import Script, ScriptedStepper
from tests.support.waiting import wait_for

MODEL_NAME = "tiny"


class EngineCluster:
    """Engines `p0...` and `d0...` that know each other once the `with` block is entered."""

    def __init__(
        self,
        model_dir: Path,
        *,
        num_prefill: int = 1,
        num_decode: int = 1,
        prefill: dict[str, Any] | None = None,
        decode: dict[str, Any] | None = None,
        script: Script | None = None,
        **both: Any,
    ) -> None:
        """`prefill`, `decode` and `both` are EngineSettings; blocks are 4 tokens unless said.

        With a `script` the model computes nothing: every engine says what the script has.
        """
        self._script = script
        self._closers = ExitStack()
        self._model_dir = model_dir
        self._counts = {Role.PREFILL: num_prefill, Role.DECODE: num_decode}
        settings = {**TINY, "transfer": "fake", **both}
        self._settings = {
            Role.PREFILL: {**settings, **(prefill or {})},
            Role.DECODE: {**settings, **(decode or {})},
        }
        self.engines: dict[str, EngineHost] = {}

    def __enter__(self) -> "EngineCluster":
        with ExitStack() as undo:
            undo.push(self._closers)
            self._service = BootstrapService("tcp://127.0.0.1:0", lease_s=2.0)
            self._service.start()
            self._closers.callback(self._service.stop)
            for role, count in self._counts.items():
                for index in range(count):
                    self.start_engine(role, index)
            wait_for(self._introduced, what="engines know each other")
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closers.close()

    @property
    def bootstrap(self) -> str:
        """The service's endpoint."""
        return self._service.endpoint

    def start_engine(self, role: Role, index: int, **changes: Any) -> EngineHost:
        """Start engine number `index` of its role; a second one replaces the first."""
        prefix = "p" if role is Role.PREFILL else "d"
        settings = EngineSettings(
            worker_id=f"{prefix}{index}",
            model_dir=str(self._model_dir),
            model_name=MODEL_NAME,
            bootstrap=self.bootstrap,
            **self._settings[role],
        )
        kind = PrefillWorker if role is Role.PREFILL else DecodeWorker
        engine = kind(replace(settings, **changes))
        engine.start()
        if self._script is not None:
            stepper = engine._loop._stepper
            assert isinstance(stepper, ModelStepper)
            engine._loop._stepper = ScriptedStepper(self._script, stepper)
        self._closers.callback(engine.stop)
        self.engines[settings.worker_id] = engine
        return engine

    def prefill_core(self, worker_id: str = "p0") -> PrefillCore:
        """The core of a prefill engine; only look at it while its engine is idle."""
        core = self.engines[worker_id].core
        assert isinstance(core, PrefillCore)
        return core

    def decode_core(self, worker_id: str = "d0") -> DecodeCore:
        """The core of a decode engine; only look at it while its engine is idle."""
        core = self.engines[worker_id].core
        assert isinstance(core, DecodeCore)
        return core

    @contextmanager
    def gate(self, worker_id: str) -> Iterator["Gate"]:
        """Hold an engine's steps back until the block ends."""
        loop = self.engines[worker_id]._loop
        gate = Gate(loop._stepper)
        loop._stepper = gate
        try:
            yield gate
        finally:
            gate.open()
            loop._stepper = gate.stepper

    def idle(self) -> bool:
        """Whether no engine has a room, and every page is free or cached."""
        return all(_is_idle(engine) for engine in self.engines.values())

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """Wait until `idle`, then check that every core agrees with itself."""
        wait_for(self.idle, timeout_s, "all engines idle")
        for engine in self.engines.values():
            engine.core.validate()

    def _introduced(self) -> bool:
        total = sum(self._counts.values())
        return all(engine.num_known_workers >= total for engine in self.engines.values())


class Gate:
    """A stepper that waits before each step until it is opened."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self._entered = threading.Event()
        self._opened = threading.Event()

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        """Wait, then step."""
        self._entered.set()
        assert self._opened.wait(60)
        return self.stepper.run(plan)

    def wait_entered(self) -> None:
        """Block until a step waits here."""
        assert self._entered.wait(60)

    def open(self) -> None:
        """Let steps pass from now on."""
        self._opened.set()


def _is_idle(engine: EngineHost) -> bool:
    load = engine.load()
    busy = sum(n for state, n in load.pages.items() if state not in ("free", "cached"))
    return load.num_rooms == 0 and busy == 0

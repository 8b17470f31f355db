"""The loop both engines run: receive, schedule, step, emit, reap. One thread; the core decides all.

Other threads only put events in. The loop is one of the three places where a broad `except` stands: an
error in a step ends that step's rooms and the engine goes on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from bootstrap.membership import WorkerLoad
from engine.core import EngineCore, StepPlan, StepResult
from engine.draining import Draining

IDLE_WAIT_S = 0.1
MAX_EVENTS = 1 << 16
TICK_INTERVAL_S = 0.05

logger = logging.getLogger(__name__)


class Stepper(Protocol):
    """Runs a plan on the model."""

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        """One result per chunk."""
        ...


class Inbox:
    """Events for the loop, from any thread. What may get lost is not put in while it `is_full`."""

    def __init__(self) -> None:
        self._events: deque[object] = deque()
        self._ready = threading.Condition()

    def put(self, event: object) -> None:
        """Add an event and wake the loop."""
        with self._ready:
            self._events.append(event)
            self._ready.notify()

    @property
    def is_full(self) -> bool:
        """Whether MAX_EVENTS wait: the loop is far behind."""
        return len(self._events) >= MAX_EVENTS

    def take(self, timeout_s: float) -> list[object]:
        """All events; waits up to `timeout_s` for the first."""
        with self._ready:
            if not self._events and timeout_s > 0:
                self._ready.wait(timeout_s)
            events = list(self._events)
            self._events.clear()
        return events


class EngineLoop:
    """Owns the core: nothing else touches it while the loop runs.

    `execute` carries out instructions; `tell_load` is called when others should know the load at once.
    """

    def __init__(
        self,
        core: EngineCore,
        stepper: Stepper,
        execute: Callable[[object], None],
        tell_load: Callable[[], None],
    ) -> None:
        self.inbox = Inbox()
        self.load: WorkerLoad = core.load()  # replaced after each round, read by any thread
        self.num_rounds = 0  # read by any thread: a loop that stands still does not count on
        self._core = core
        self._stepper = stepper
        self._execute = execute
        self._tell_load = tell_load
        self.farewell = "stopped"  # what the end came to, once it has come
        self._drain_asked: float | None = None  # seconds until the deadline
        self._draining: Draining | None = None
        self._stopping = threading.Event()
        self._next_tick_at = 0.0

    def run(self) -> None:
        """Run until `stop` or the end of a drain; then end every room that is left and return."""
        busy = False
        while not self._stopping.is_set() and not self._is_drained():
            busy = self._round(0.0 if busy else IDLE_WAIT_S)
        self._core.shut_down(time.monotonic())
        self._emit()
        self.load = self._core.load()

    def stop(self) -> None:
        """Ask the loop to end after its present round."""
        self._stopping.set()
        self.inbox.put(None)

    def drain(self, deadline_s: float) -> None:
        """Ask the loop to take no new room and to end when those that are here have, or at the deadline.

        Idempotent: the first deadline counts.
        """
        if self._drain_asked is None:
            self._drain_asked = deadline_s
            self.inbox.put(None)

    def _is_drained(self) -> bool:
        now = time.monotonic()
        if self._draining is None:
            if self._drain_asked is not None:
                self._draining = Draining.begin(self._drain_asked, now)
                self._core.take_no_more()
                self.load = self._core.load()
                self._tell_load()
            return False
        if not self._draining.is_over(self._core.idle, now):
            return False
        self.farewell = self._draining.account(self.load.num_rooms, now)
        return True

    def _round(self, wait_s: float) -> bool:
        """One turn; whether a step ran."""
        core = self._core
        for event in self.inbox.take(wait_s):
            core.handle(event, time.monotonic())
        now = time.monotonic()
        if now >= self._next_tick_at:
            self._next_tick_at = now + TICK_INTERVAL_S
            core.tick(now)
        plan = core.plan(now)
        self._emit()
        if plan is not None:
            self._step(plan)
            self._emit()
        self.load = core.load()
        self.num_rounds += 1
        return plan is not None

    def _step(self, plan: StepPlan) -> None:
        try:
            results = self._stepper.run(plan)
        except Exception as error:
            logger.exception("a step of %d rooms failed", len(plan.rooms))
            detail = f"{type(error).__name__} in the model step"
            self._core.step_failed(plan, detail, time.monotonic())
        else:
            self._core.complete(plan, results, time.monotonic())

    def _emit(self) -> None:
        for instruction in self._core.drain():
            self._execute(instruction)

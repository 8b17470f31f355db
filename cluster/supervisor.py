"""Which workers should live, which do, and what to do about the difference. Pure; time is passed in.

Owns when a dead worker starts again, which workers are wanted at all, and the memory of why each died.
Knows no actors and no sockets: its shell reports what it saw, asks for decisions and carries them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from bootstrap.errors import IllegalTransition
from bootstrap.identity import WorkerRef

STABLE_S = 30.0  # a life that served this long ends a crash loop
MAX_ERROR_CHARS = 1000


class LifeState(Enum):
    """Where a worker's current life stands."""

    ENDING = "ending"  # over, but its process may still be there
    WAITING = "waiting"  # no process; starts when its back-off is over
    STARTING = "starting"  # a process, not serving yet
    SERVING = "serving"  # registered
    DRAINING = "draining"  # finishing its rooms, taking no new ones


_MOVES = {
    LifeState.WAITING: {LifeState.STARTING},
    LifeState.STARTING: {LifeState.SERVING, LifeState.ENDING},
    LifeState.SERVING: {LifeState.DRAINING, LifeState.ENDING},
    LifeState.DRAINING: {LifeState.ENDING},
    LifeState.ENDING: {LifeState.WAITING},
}


@dataclass(frozen=True, slots=True)
class Start:
    """Start a new life of this worker."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Tell the bootstrap service that this incarnation is dead: its process is gone."""

    ref: WorkerRef


@dataclass(frozen=True, slots=True)
class Backoff:
    """Say that this worker died of `error` and starts again in `delay_s`, or once it is gone."""

    worker_id: str
    delay_s: float
    error: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let this worker finish its rooms and end."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this worker, which holds no room yet."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing of this worker is left, and it is not wanted any more."""

    worker_id: str


Decision = Start | Evict | Backoff | Drain | Kill | Forget


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The pause before start n of a crash loop: `first_s`, doubled each time, `longest_s` at most."""

    first_s: float = 0.2
    longest_s: float = 10.0

    def delay_s(self, num_failures: int) -> float:
        """The pause after the `num_failures`-th failure in a row, from 1."""
        doublings = min(num_failures - 1, 32)  # beyond it a float would grow without need
        return float(min(self.longest_s, self.first_s * 2**doublings))


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as its supervisor sees it."""

    worker_id: str
    state: LifeState
    ref: WorkerRef | None
    num_starts: int
    num_failures: int  # in a row
    retry_in_s: float  # 0 unless waiting
    last_error: str
    leaving: bool  # gone for good once this life has ended


class _Worker:
    """One worker: at most one life at a time, and none after this one when it is leaving."""

    def __init__(self, worker_id: str, now: float) -> None:
        self.worker_id = worker_id
        self.state = LifeState.WAITING
        self.ref: WorkerRef | None = None
        self.due_at = now
        self.serving_since = now
        self.num_starts = 0
        self.num_failures = 0
        self.last_error = ""
        self.leaving = False

    def advance(self, state: LifeState) -> None:
        if state not in _MOVES[self.state]:
            raise IllegalTransition(
                f"worker {self.worker_id}, start {self.num_starts}, {self.ref or 'no incarnation'}:"
                f" {self.state.value} -> {state.value}"
            )
        self.state = state


class Supervisor:
    """One entry per worker that is desired or still leaves; none has two lives or processes at once.

    A new life's registration says that the old one writes nothing any more, just as an eviction does:
    neither may come while the old process could still write. Survivors are never touched: every
    decision names the worker that died and no other.
    """

    def __init__(
        self, desired: Sequence[str], now: float, backoff: BackoffPolicy | None = None
    ) -> None:
        self._workers = {worker_id: _Worker(worker_id, now) for worker_id in desired}
        self._backoff = backoff or BackoffPolicy()

    # --- what is wanted ------------------------------------------------------------------------

    def desire(self, worker_id: str, now: float) -> None:
        """From now on this worker should live; one that leaves begins another life after this one."""
        self._workers.setdefault(worker_id, _Worker(worker_id, now)).leaving = False

    def undesire(self, worker_id: str) -> list[Decision]:
        """This worker should leave for good, once it has finished its rooms."""
        worker = self._workers[worker_id]
        worker.leaving = True
        if worker.state is LifeState.WAITING:
            return self._forget(worker)
        if worker.state is LifeState.STARTING:
            return [Kill(worker_id)]
        return self.renew(worker_id)

    def renew(self, worker_id: str) -> list[Decision]:
        """End a serving life in order; a new one follows unless the worker is leaving."""
        worker = self._workers[worker_id]
        if worker.state is not LifeState.SERVING:
            return []
        worker.advance(LifeState.DRAINING)
        return [Drain(worker_id)]

    # --- what happens --------------------------------------------------------------------------

    def reconcile(self, now: float) -> list[Decision]:
        """Start every worker that is due; the caller has begun it when this returns."""
        due = [
            worker
            for worker in self._workers.values()
            if worker.state is LifeState.WAITING and worker.due_at <= now
        ]
        for worker in due:
            worker.advance(LifeState.STARTING)
            worker.num_starts += 1
        return [Start(worker.worker_id) for worker in due]

    def named(self, worker_id: str, ref: WorkerRef) -> None:
        """The life that is starting, or serves, told who it is."""
        self._workers[worker_id].ref = ref

    def serving(self, worker_id: str, now: float) -> None:
        """The worker's current life has registered."""
        worker = self._workers[worker_id]
        worker.advance(LifeState.SERVING)
        worker.serving_since = now

    def died(self, worker_id: str, error: str, now: float) -> list[Decision]:
        """The worker's current life broke; `gone` must follow once its process is."""
        worker = self._workers[worker_id]
        served_s = now - worker.serving_since if worker.state is LifeState.SERVING else 0.0
        worker.advance(LifeState.ENDING)
        worker.num_failures = 1 if served_s >= STABLE_S else worker.num_failures + 1
        worker.last_error = error[:MAX_ERROR_CHARS]
        delay_s = self._backoff.delay_s(worker.num_failures)
        worker.due_at = now + delay_s
        return [] if worker.leaving else [Backoff(worker_id, delay_s, worker.last_error)]

    def drained(self, worker_id: str, now: float) -> None:
        """The worker's draining life ended in order; `gone` must follow once its process is."""
        worker = self._workers[worker_id]
        worker.advance(LifeState.ENDING)
        worker.num_failures, worker.due_at = 0, now

    def gone(self, worker_id: str) -> list[Decision]:
        """The process of the life that was over is no more: others may be told that it is dead."""
        worker = self._workers[worker_id]
        worker.advance(LifeState.WAITING)
        ref, worker.ref = worker.ref, None
        evicted: list[Decision] = [] if ref is None else [Evict(ref)]
        return [*evicted, *self._forget(worker)] if worker.leaving else evicted

    def next_due_s(self, now: float) -> float | None:
        """Seconds until the next start is due; None when nobody waits."""
        waiting = [w.due_at for w in self._workers.values() if w.state is LifeState.WAITING]
        return max(0.0, min(waiting) - now) if waiting else None

    def status(self, now: float) -> tuple[WorkerStatus, ...]:
        """All workers in the order in which they were first desired."""
        return tuple(
            WorkerStatus(
                worker_id=w.worker_id,
                state=w.state,
                ref=w.ref,
                num_starts=w.num_starts,
                num_failures=w.num_failures,
                retry_in_s=max(0.0, w.due_at - now) if w.state is LifeState.WAITING else 0.0,
                last_error=w.last_error,
                leaving=w.leaving,
            )
            for w in self._workers.values()
        )

    def _forget(self, worker: _Worker) -> list[Decision]:
        del self._workers[worker.worker_id]
        return [Forget(worker.worker_id)]

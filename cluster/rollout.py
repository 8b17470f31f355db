"""One order on its way: which steps begin now, which are done, and when it has failed. Pure.

Knows nothing of how an engine is started or drained; its owner carries steps out and says what it sees.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bootstrap.errors import IllegalTransition
from cluster.orders import Add, Remove, Renew, Step, Steps

MAX_FAILED_STARTS = (
    3  # of one engine in a row: then the fault is one that another start does not mend
)
PLACE_WAIT_S = 15.0  # for an extra engine to find a place to run


class RolloutState(Enum):
    """Where an order stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


_MOVES = {RolloutState.RUNNING: {RolloutState.DONE, RolloutState.FAILED}}


@dataclass(frozen=True, slots=True)
class Seen:
    """One engine as its supervisor sees it. `ready` when others know that it serves."""

    ready: bool
    placed: bool  # has a process
    num_starts: int
    num_failures: int  # in a row
    last_error: str
    words: str  # where it stands, for people


@dataclass(slots=True)
class _Begun:
    at: float
    num_starts: int  # of the life that a renewal replaces


class Rollout:
    """Steps begin group by group; the first engine that cannot start ends the order where it stands."""

    def __init__(self, steps: Steps, limit_s: float) -> None:
        """A group that takes longer than `limit_s` has failed."""
        self.state = RolloutState.RUNNING
        self._groups = list(steps.plan)
        self._otherwise = list(steps.otherwise)
        self._limit_s = limit_s
        self._begun: dict[Step, _Begun] = {}
        self._account: list[str] = []
        self._now_doing = ""

    @property
    def words(self) -> str:
        """What is going on, or what came of it."""
        if self.state is RolloutState.RUNNING:
            return self._now_doing
        return "\n".join(self._account) or "nothing to do"

    def heard(self, worker_id: str, words: str) -> None:
        """What an engine said of its end."""
        self._account.append(f"{worker_id}: {words}")

    def step(self, seen: Mapping[str, Seen], now: float) -> list[Step]:
        """Steps to begin now."""
        while self.state is RolloutState.RUNNING:
            if not self._groups:
                self._advance(RolloutState.DONE)
                break
            group = self._groups[0]
            if not self._begun:
                self._begun = {step: _begin(step, seen, now) for step in group}
                self._note(seen)
                return list(group)
            if self._has_no_place(seen, now):
                self._groups, self._otherwise, self._begun = self._otherwise, [], {}
                continue
            self._fail_if_hopeless(seen, now)
            if not all(self._is_done(step, seen) for step in group):
                break
            self._account += [line for step in group if (line := self._done(step, now))]
            del self._groups[0]
            self._otherwise, self._begun = [], {}
        self._note(seen)
        return []

    # --- inner ---------------------------------------------------------------------------------

    def _is_done(self, step: Step, seen: Mapping[str, Seen]) -> bool:
        engine = seen.get(step.worker_id)
        if isinstance(step, Remove):
            return engine is None
        if engine is None or not engine.ready:
            return False
        return isinstance(step, Add) or engine.num_starts > self._begun[step].num_starts

    def _done(self, step: Step, now: float) -> str:
        took_s = now - self._begun[step].at
        if isinstance(step, Add):
            return f"{step.worker_id}: serves after {took_s:.1f} s"
        if isinstance(step, Renew):
            return f"{step.worker_id}: serves again after {took_s:.1f} s"
        return ""  # it has said itself how it ended

    def _has_no_place(self, seen: Mapping[str, Seen], now: float) -> bool:
        for step, begun in self._begun.items():
            engine = seen.get(step.worker_id)
            waits = isinstance(step, Add) and engine is not None and not engine.placed
            if self._otherwise and waits and now - begun.at >= PLACE_WAIT_S:
                self.heard(step.worker_id, "found no place, so engines restart where they are")
                return True
        return False

    def _fail_if_hopeless(self, seen: Mapping[str, Seen], now: float) -> None:
        for step, begun in self._begun.items():
            engine = seen.get(step.worker_id)
            if self._is_done(step, seen):
                continue
            if engine is None:
                why = "was taken out meanwhile"
            elif not isinstance(step, Remove) and engine.num_failures >= MAX_FAILED_STARTS:
                why = f"does not start: {engine.last_error}"
            elif now - begun.at >= self._limit_s:
                why = f"not done after {self._limit_s:.0f} s: {engine.words}"
            else:
                continue
            self._account.append(f"{step.worker_id}: {why}")
            self._advance(RolloutState.FAILED)
            return

    def _note(self, seen: Mapping[str, Seen]) -> None:
        stands = (
            (step.worker_id, seen[step.worker_id].words if step.worker_id in seen else "to start")
            for step in self._begun
            if not self._is_done(step, seen)
        )
        self._now_doing = "; ".join(f"{worker_id}: {words}" for worker_id, words in stands)

    def _advance(self, state: RolloutState) -> None:
        if state not in _MOVES.get(self.state, ()):
            raise IllegalTransition(f"rollout: {self.state.value} -> {state.value}")
        self.state = state


def _begin(step: Step, seen: Mapping[str, Seen], now: float) -> _Begun:
    engine = seen.get(step.worker_id)
    # One that is on its way to a new life anyway needs no further one.
    return _Begun(now, engine.num_starts if engine is not None and engine.ready else 0)

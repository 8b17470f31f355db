"""Fake time, and processes that can be killed, stopped and woken in it.

Owns the order of events: by time, then by when they were asked for. Nothing here reads a real clock, so
a run is a function of its seed.
"""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

Action = Callable[..., None]


class Clock:
    """`now` only grows; what is due runs one after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, delay_s: float, action: Action, *args: Any) -> None:
        """Do it in `delay_s` seconds."""
        entry = (self.now + max(0.0, delay_s), next(self._numbers), action, args)
        heapq.heappush(self._due, entry)

    def run(self, until: float, done: Callable[[], bool]) -> bool:
        """Let time pass to `until`, or until `done`; whether it was done."""
        while not done():
            if not self._due or self._due[0][0] > until:
                self.now = until
                return done()
            self.now, _, action, args = heapq.heappop(self._due)
            action(*args)
        return True


class Process:
    """Does nothing when dead; when stopped, everything waits until it is woken, in order."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.alive = True
        self.stopped = False
        self._waiting: deque[tuple[Action, tuple[Any, ...]]] = deque()

    def later(self, delay_s: float, action: Action, *args: Any) -> None:
        """A timer of this process's own."""
        self.clock.at(delay_s, self.act, action, *args)

    def act(self, action: Action, *args: Any) -> None:
        """Something happens to this process: a timer ends, a message arrives."""
        if self.stopped:
            self._waiting.append((action, args))
        elif self.alive:
            action(*args)
            self.acted()

    def acted(self) -> None:
        """After whatever it did."""

    def kill(self) -> None:
        """SIGKILL."""
        self.alive = self.stopped = False
        self._waiting.clear()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = self.alive

    def wake(self) -> None:
        """SIGCONT: what waited happens now."""
        self.stopped = False
        while self._waiting and not self.stopped:
            action, args = self._waiting.popleft()
            self.act(action, *args)

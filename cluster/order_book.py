"""Orders on their way from other threads to the supervisor's own, one carried out at a time.

Owns the hand-over between threads and which order runs. What an order comes to is `cluster.orders`'.
"""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from bootstrap.errors import ConfigError
from cluster.orders import Engines, Order, Step, steps_of
from cluster.rollout import Rollout, RolloutState, Seen

MAX_REMEMBERED = 8  # orders that are over, for whoever gave them
GIVE_TIMEOUT_S = 10.0  # for the supervisor to look at an order
_MARGIN_S = 30.0  # of an order's group, beyond its drain and its start


@dataclass(frozen=True, slots=True)
class OrderStatus:
    """Where an order stands, and what came of it once it is over."""

    number: int
    state: RolloutState
    words: str


class OrderBook:
    """At most one order runs. `give` is for other threads, all else for the supervisor's own."""

    def __init__(self, drain_s: float, start_timeout_s: float) -> None:
        """What an engine has for its rooms, unless an order says otherwise, and for its start."""
        self._default_drain_s = self.drain_s = drain_s
        self._start_timeout_s = start_timeout_s
        self._given: SimpleQueue[tuple[Order, Future[int | str]]] = SimpleQueue()
        self._rollout: Rollout | None = None
        self._number = 0
        self._past: deque[OrderStatus] = deque(maxlen=MAX_REMEMBERED)

    def give(self, order: Order) -> int | str:
        """Have an order carried out: its number, or why it is not. Raises TimeoutError."""
        answer: Future[int | str] = Future()
        self._given.put((order, answer))
        return answer.result(GIVE_TIMEOUT_S)

    @property
    def statuses(self) -> tuple[OrderStatus, ...]:
        """Of the latest orders, oldest first."""
        return (*self._past, *self._present())

    def take(self, engines: Engines) -> None:
        """Look at what was given; `engines` are those that are wanted now, oldest first."""
        while True:
            try:
                order, answer = self._given.get_nowait()
            except Empty:
                return
            answer.set_result(self._begin(order, engines))

    def step(self, seen: Mapping[str, Seen], now: float) -> list[Step]:
        """Steps to begin now."""
        return [] if self._rollout is None else self._rollout.step(seen, now)

    def heard(self, worker_id: str, words: str) -> None:
        """What an engine that left said of its end."""
        if self._rollout is not None and self._rollout.state is RolloutState.RUNNING:
            self._rollout.heard(worker_id, words)

    def _begin(self, order: Order, engines: Engines) -> int | str:
        if self._rollout is not None and self._rollout.state is RolloutState.RUNNING:
            return f"another order is being carried out: {self._rollout.words}"
        try:
            steps = steps_of(order, engines)
        except ConfigError as error:
            return str(error)
        self.drain_s = self._default_drain_s if order.timeout_s is None else order.timeout_s
        self._past.extend(self._present())
        self._rollout = Rollout(steps, self.drain_s + self._start_timeout_s + _MARGIN_S)
        self._number += 1
        return self._number

    def _present(self) -> tuple[OrderStatus, ...]:
        if self._rollout is None:
            return ()
        return (OrderStatus(self._number, self._rollout.state, self._rollout.words),)

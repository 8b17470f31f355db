"""What befalls a cluster in a soak: one random fault on a random process at a time, each over soon.

An engine is struck only while another of its role serves: without one no cluster could answer, and the
errors would say nothing but that.
"""

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.faults.real_clients import Clients, Shape
from tests.faults.real_cluster import RealCluster

STOP_S = (0.5, 4.0)  # shorter and longer than a lease
BURST = 6  # requests that are begun and left at once

FAULTS = ("kill", "stop", "restart", "cancel burst", "balancer kill", "balancer stop")
WEIGHTS = (5, 4, 3, 3, 1, 1)


@dataclass(slots=True)
class FaultDriver:
    """Strikes when it is told to; nothing stays stopped after `mend`."""

    cluster: RealCluster
    dice: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    _wake_at: dict[str, tuple[float, int]] = field(
        default_factory=dict
    )  # name: when, and which life
    _began: float = field(default_factory=time.monotonic)

    @property
    def num_strikes(self) -> int:
        """Faults so far."""
        return sum(self.counts.values())

    def strike(self) -> None:
        """One random fault."""
        kind = self.dice.choices(FAULTS, WEIGHTS)[0]
        spare = self._spare()
        name = "lb" if kind.startswith("balancer") else self.dice.choice(spare) if spare else ""
        if kind == "cancel burst" or not name:
            self._cancel_burst()
            kind, name = "cancel burst", ""
        elif kind.endswith("stop"):
            self._stop(name)
        elif kind == "restart":  # in order: SIGTERM, and a new life when it has ended
            self.cluster.signal(name, signal.SIGTERM)
        else:
            self.cluster.signal(name, signal.SIGKILL)
        self.counts[kind] += 1
        self.story.append(f"{time.monotonic() - self._began:7.1f} s {kind} {name}")

    def tend(self) -> None:
        """Wake what has been stopped for long enough."""
        now = time.monotonic()
        for name, (wake_at, pid) in list(self._wake_at.items()):
            if now >= wake_at:
                del self._wake_at[name]
                if self.cluster.processes[name].pid == pid:
                    self.cluster.resume(name)

    def mend(self) -> None:
        """Wake everybody."""
        self._wake_at = {name: (0.0, pid) for name, (_, pid) in self._wake_at.items()}
        self.tend()

    def _spare(self) -> list[str]:
        """Engines whose sibling serves, as the balancer sees it."""
        known = self.cluster.members()
        serving = [
            name
            for name, life in self.cluster.processes.items()
            if known.get(name) == life.incarnation and name not in self._wake_at
        ]
        return [name for name in serving if any(_are_siblings(name, other) for other in serving)]

    def _stop(self, name: str) -> None:
        life = self.cluster.processes[name]
        if name in self._wake_at or not life.process.is_alive():
            return
        self._wake_at[name] = time.monotonic() + self.dice.uniform(*STOP_S), life.pid
        self.cluster.stop(name)

    def _cancel_burst(self) -> None:
        clients = Clients(self.cluster.url)
        for _ in range(BURST):
            prompt = tuple(self.dice.choices(range(3, 300), k=self.dice.randint(20, 400)))
            clients.begin(Shape(prompt, 64, leave_after=self.dice.randint(1, 20)))


def _are_siblings(one: str, other: str) -> bool:
    return one != other and one[0] == other[0]

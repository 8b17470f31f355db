"""Cells of the fault matrix on real processes and the real transport: a step, a moment, a fault.

A process is held just before or just after it does a step of the protocol, the fault befalls it, its
partner or the link between them, and it goes on, if it still can. Several requests are under way; each
must have one of the outcomes that the cell allows, in time and with the tokens of its unbroken run. Then
everything is mended, and pages, rooms and the next request must be as if nothing had been.
"""

import itertools
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.faults.real_child import WRITE, Hold
from tests.faults.real_clients import (
    ANSWERED,
    BROKEN_OFF,
    CUT,
    HUNG,
    LEFT,
    REFUSED,
    Answer,
    Clients,
    Shape,
)
from tests.faults.real_cluster import RealCluster, RealProcess
from tests.faults.results import CellResult
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

KILL_SEEN_S = 1.0
STOP_SEEN_S = 5.0
TOLD_S = 2.0  # after the cluster has seen it
BUSY_S = 10.0  # what a busy test host may add to any of them
PAUSE_S = 3.0  # how long those are stopped whose stop is a pause for all

SHAPES = [Shape((10 + i, *range(20, 60)), 96, i % 2 * 1.0, seed=i) for i in range(4)]
# Far longer than the others: the engines must not be done with it when the balancer sees it leave.
LEAVING = Shape(SHAPES[0].prompt, 1500, leave_after=8)


class Fault(Enum):
    """What befalls a process or the link to it."""

    KILL = "kill"
    STOP = "stop"
    RESTART_SAME = "restart at the same address"
    RESTART_MOVED = "restart at another address"
    REFUSED = "connection refused"
    RESET = "connection reset"
    BLACK_HOLE = "black hole"


PROCESS_FAULTS = (Fault.KILL, Fault.STOP, Fault.RESTART_SAME, Fault.RESTART_MOVED)

# Who does a step, by the first letters of its name; who it concerns is known when it comes.
STEPS: dict[str, tuple[str, Hold]] = {
    "dispatch P": ("lb", Hold("PrefillDispatch")),
    "dispatch D": ("lb", Hold("DecodeDispatch")),
    "started": ("p", Hold("PrefillStarted")),
    "manifest": ("d", Hold("Manifest")),
    "write": ("p", Hold(WRITE)),
    "commit": ("p", Hold("HandoffRecord")),
    "accept": ("d", Hold("HandoffAccepted")),
    "first token": ("p", Hold("TokenBatch")),
    "token batch": ("d", Hold("TokenBatch", count=5)),
    "heartbeat P": ("p", Hold("Heartbeat")),
    "heartbeat D": ("d", Hold("Heartbeat")),
    "cancel": ("lb", Hold("AbortRoom")),
}


@dataclass(frozen=True, slots=True)
class RealCell:
    """`at_sender`: the fault befalls who does the step; else whom it concerns, or the link there."""

    step: str
    after: bool
    fault: Fault
    at_sender: bool

    @property
    def name(self) -> str:
        """STEP/FAULT/POSITION."""
        who = "sender" if self.at_sender else "receiver"
        return f"{self.step}/{self.fault.value} of {who}/{'after' if self.after else 'before'}"


def all_cells() -> list[RealCell]:
    """Every combination: processes are struck on both sides of a step, links on the way to one."""
    cells = []
    for step, after, fault, at_sender in itertools.product(
        STEPS, (False, True), Fault, (True, False)
    ):
        if fault in PROCESS_FAULTS or not at_sender:
            cells.append(RealCell(step, after, fault, at_sender))
    return cells


def selection(seed: int, count: int) -> list[RealCell]:
    """`count` different cells; every fault comes before any comes twice."""
    dice = random.Random(seed)
    by_fault = {fault: [c for c in all_cells() if c.fault is fault] for fault in Fault}
    for cells in by_fault.values():
        dice.shuffle(cells)
    rounds = itertools.zip_longest(*by_fault.values())
    return [cell for cells in rounds for cell in cells if cell is not None][:count]


def run_selection(seed: int, count: int = 12) -> Iterator[CellResult]:
    """Run a seed's selection on one cluster of two pairs."""
    return run_cells(selection(seed, count))


def run_cells(cells: Sequence[RealCell]) -> Iterator[CellResult]:
    """One after another; a cell that leaves the cluster broken ends the run."""
    with tempfile.TemporaryDirectory(prefix="pdserve-cells-") as name:
        folder = Path(name)
        with RealCluster(make_tiny_model(folder / "model"), folder, links=True) as cluster:
            expected = _unbroken_run(cluster)
            for cell in cells:
                yield _Run(cluster, cell, expected).result()


def _unbroken_run(cluster: RealCluster) -> list[list[int]]:
    clients = Clients(cluster.url)
    answers = [clients.begin(shape) for shape in SHAPES]
    clients.wait()
    assert {a.outcome for a in answers} == {ANSWERED}, answers
    return [a.token_ids for a in answers]


class _Run:
    """One cell on a cluster that is whole before and, if the cell is right, after."""

    def __init__(
        self, cluster: RealCluster, cell: RealCell, expected: Sequence[Sequence[int]]
    ) -> None:
        self._cluster, self._cell, self._expected = cluster, cell, expected
        self._victim: RealProcess | None = None
        self._struck_at = 0.0
        self._detected_at: float | None = None
        self._waking: threading.Timer | None = None

    def result(self) -> CellResult:
        """Run it; a wrong outcome is a result, not an error."""
        cell = self._cell
        try:
            answers = self._run()
            self._mend()
            faults = self._faults_of(answers)
        except AssertionError as error:
            return CellResult(cell.name, HUNG, self._detection_s, str(error)[:2000], ok=False)
        finally:  # the cluster may end before it fires
            if self._waking is not None:
                self._waking.cancel()
        outcomes = "+".join(sorted({a.outcome for a in answers}))
        return CellResult(cell.name, outcomes, self._detection_s, "; ".join(faults), not faults)

    @property
    def _detection_s(self) -> float | None:
        return None if self._detected_at is None else self._detected_at - self._struck_at

    def _run(self) -> list[Answer]:
        cluster, cell = self._cluster, self._cell
        prefix, hold = STEPS[cell.step]
        hold = Hold(hold.step, cell.after, hold.count)
        actors = [p for n, p in cluster.processes.items() if n.rstrip("0123456789") == prefix]
        for actor in actors:
            actor.hold(hold)
        clients = Clients(cluster.url)
        shapes = [LEAVING, *SHAPES[1:]] if cell.step == "cancel" else SHAPES
        answers = [clients.begin(shape) for shape in shapes]
        wait_for(lambda: any(a.held.is_set() for a in actors), 60.0, f"step {cell.step}")
        held = next(a for a in actors if a.held.is_set())
        self._strike(held.name if cell.at_sender else held.towards)
        for actor in actors:
            actor.let_go()
        self._watch()
        clients.wait()
        return answers

    def _strike(self, name: str) -> None:
        cluster, fault = self._cluster, self._cell.fault
        self._victim = cluster.processes[name]
        link = cluster.links.get(name)
        self._struck_at = time.monotonic()
        if fault is Fault.STOP:
            cluster.stop(name)
            if name in ("lb", "bootstrap"):
                self._waking = threading.Timer(PAUSE_S, cluster.signal, (name, signal.SIGCONT))
                self._waking.start()
        elif fault in PROCESS_FAULTS:
            cluster.kill(name)
            if fault is not Fault.KILL:
                may_move = name not in ("lb", "bootstrap")
                cluster.start(name, moved=may_move and fault is Fault.RESTART_MOVED)
        elif name == "bootstrap":  # each process has a way of its own there
            self._strike_links([li for n, li in cluster.links.items() if n.endswith(">bootstrap")])
        else:
            assert link is not None
            self._strike_links([link])

    def _strike_links(self, links: Sequence["object"]) -> None:
        for link in links:
            act = {
                Fault.REFUSED: "refuse",
                Fault.RESET: "reset",
                Fault.BLACK_HOLE: "stall",
            }[self._cell.fault]
            getattr(link, act)()

    def _watch(self) -> None:
        """See when the balancer has noticed that an engine's life is over, or silent."""
        victim, fault = self._victim, self._cell.fault
        assert victim is not None
        if victim.name in ("lb", "bootstrap") or fault not in PROCESS_FAULTS:
            return
        wait_for(lambda: self._cluster.misses(victim), 30.0, f"{victim.name} is missed")
        self._detected_at = time.monotonic()

    def _mend(self) -> None:
        cluster, victim = self._cluster, self._victim
        assert victim is not None
        for link in cluster.links.values():
            link.resume()
        if self._cell.fault is Fault.STOP:
            cluster.resume(victim.name)
        elif self._cell.fault is Fault.KILL:
            cluster.start(victim.name)
        cluster.wait_members(4)
        cluster.wait_ready()
        cluster.wait_idle()

    # --- judgement -----------------------------------------------------------------------------

    def _faults_of(self, answers: Sequence[Answer]) -> list[str]:
        faults = []
        allowed, seen_s = self._allowed()
        for number, answer in enumerate(answers):
            name = f"request {number}"
            if (
                answer.outcome not in allowed and answer.shape.leave_after is None
            ) or answer.outcome not in {*allowed, LEFT}:
                faults.append(f"{name}: {answer.outcome} {answer.detail}")
            if answer.token_ids != list(self._expected[number][: len(answer.token_ids)]):
                faults.append(f"{name}: wrong tokens")
            silence_s = answer.longest_silence()
            if silence_s > seen_s + TOLD_S + BUSY_S:
                faults.append(f"{name}: silent for {silence_s:.1f} s")
        if self._detection_s is not None and self._detection_s > seen_s + BUSY_S:
            faults.append(f"seen after {self._detection_s:.1f} s")
        again = Clients(self._cluster.url).ask(SHAPES[0])
        if (again.outcome, again.token_ids) != (ANSWERED, list(self._expected[0])):
            faults.append(f"the next request: {again.outcome} {again.detail}")
        return faults

    def _allowed(self) -> tuple[set[str], float]:
        """Outcomes, and seconds in which the fault must be seen."""
        fault, victim = self._cell.fault, self._victim
        assert victim is not None
        sudden = fault not in (Fault.STOP, Fault.BLACK_HOLE, Fault.REFUSED)
        seen_s = KILL_SEEN_S if sudden else STOP_SEEN_S
        if victim.name == "lb":
            if fault in (Fault.KILL, Fault.RESTART_SAME, Fault.RESTART_MOVED):
                return {CUT, ANSWERED}, seen_s
            if fault in (Fault.BLACK_HOLE, Fault.REFUSED):  # no worker can reach it
                return {ANSWERED, REFUSED, BROKEN_OFF}, seen_s
        return {ANSWERED}, seen_s

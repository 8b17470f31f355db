"""The fault matrix for people: outcomes by step and fault, and the slowest detection of each fault."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from tests.faults.cells import Cell, Fault, Step
from tests.faults.results import CellResult, Outcome

_MARKS = {
    Outcome.SAME: "=",
    Outcome.AGAIN: "2",
    Outcome.ELSEWHERE: ">",
    Outcome.UNAVAILABLE: "5",
    Outcome.DEADLINE: "D",
    Outcome.CANCELLED: "c",
    Outcome.WRONG: "W",
    Outcome.BROKEN: "!",
}


def show_grid(console: Console, results: Sequence[CellResult]) -> None:
    """Step x fault: what came of the cells of each, over moments and layouts."""
    found: dict[tuple[str, str], list[CellResult]] = defaultdict(list)
    for result in results:
        step, fault, _ = result.name.split("/")
        found[step, fault].append(result)
    steps = [step.value for step in Step if any(s == step.value for s, _ in found)]
    faults = [fault.value for fault in Fault if any(f == fault.value for _, f in found)]
    table = Table(title="what the client sees, by step and fault", padding=(0, 1, 0, 0))
    table.add_column("step")
    for fault in faults:
        table.add_column(fault.replace("-", "\n"))
    for step in steps:
        table.add_row(step, *(_cell(found[step, fault]) for fault in faults))
    console.print(table)
    legend = "  ".join(f"{mark} {outcome.value}" for outcome, mark in _MARKS.items())
    console.print(legend, highlight=False)


def _cell(results: Sequence[CellResult]) -> str:
    marks = {_MARKS[Outcome(result.outcome)] for result in results}
    text = "".join(mark for mark in _MARKS.values() if mark in marks)
    return text if all(result.ok for result in results) else f"[bold red]{text}[/]"


def show_detection(console: Console, results: Sequence[CellResult]) -> None:
    """The slowest detection of each fault, of those cells where anything was to be noticed."""
    table = Table(title="slowest detection, by fault")
    for name in ("fault", "cells", "noticed in", "slowest (s)", "where"):
        table.add_column(name, justify="right" if name in ("cells", "slowest (s)") else "left")
    by_fault: dict[str, list[CellResult]] = defaultdict(list)
    for result in results:
        by_fault[result.name.split("/")[1]].append(result)
    for fault, group in by_fault.items():
        noticed = [(r.detection_s, r.name) for r in group if r.detection_s is not None]
        slowest_s, where = max(noticed, default=(None, ""))
        text = "-" if slowest_s is None else f"{slowest_s:.2f}"
        table.add_row(fault, str(len(group)), str(len(noticed)), text, where)
    console.print(table)


def show_meaningless(console: Console, reasons: Counter[str]) -> None:
    """How many combinations have nothing to try, and why."""
    if reasons:
        console.print(f"{sum(reasons.values())} combinations mean nothing:", highlight=False)
        for reason, num in reasons.most_common():
            console.print(f"  {num:4}  {reason}", highlight=False)


def show_failures(console: Console, results: Iterable[CellResult], seed: int) -> int:
    """Each failed cell with what repeats it; how many."""
    failed = [result for result in results if not result.ok]
    for result in failed:
        console.print(f"[bold red]{result.name}[/]: {result.outcome}: {result.detail}")
        console.print(
            f"  python -m tests.faults --seed {seed} --cells {result.name}", soft_wrap=True
        )
    return len(failed)


def matching(cells: Iterable[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Cells named by STEP/FAULT/POSITION[@LAYOUT]; parts may be left out, `*` is any."""
    return [cell for cell in cells if any(_matches(cell.name, p) for p in patterns)]


def _matches(name: str, pattern: str) -> bool:
    wanted, _, layout = pattern.partition("@")
    if layout and not name.endswith(f"@{layout}"):
        return False
    parts = name.partition("@")[0].split("/")
    return all(w in ("", "*", p) for w, p in zip(wanted.split("/"), parts, strict=False))

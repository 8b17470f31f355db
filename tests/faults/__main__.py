"""`python -m tests.faults`: the fault matrix on the pure cores, and what else is asked for."""

import argparse
import sys
import time
from collections import Counter

from rich.console import Console

from tests.faults import report
from tests.faults.cells import all_cells
from tests.faults.matrix import run_matrix, why_meaningless
from tests.faults.results import CellResult


def main() -> int:
    """0 when every cell had its one outcome in time."""
    arguments = _parser().parse_args()
    console = Console()
    failed = 0
    if arguments.explore is not None:
        failed += _explore(console, arguments.explore)
    elif arguments.real:
        failed += _real(console, arguments.seed)
    else:
        for seed in range(arguments.seed, arguments.seed + arguments.rounds):
            failed += _matrix(console, seed, arguments.cells)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="each with the next seed")
    parser.add_argument(
        "--cells",
        nargs="+",
        default=["*"],
        metavar="STEP/FAULT/POSITION",
        help="only these; * is any, parts may be left out at the end, @1P+1D or @2P+2D may follow",
    )
    parser.add_argument("--real", action="store_true", help="a selection on real processes")
    parser.add_argument(
        "--explore", type=int, metavar="DEPTH", help="every order of events instead, DEPTH faults"
    )
    return parser


def _matrix(console: Console, seed: int, patterns: list[str]) -> int:
    started_at = time.perf_counter()
    cells = report.matching(all_cells(), patterns)
    reasons = Counter(reason for cell in cells if (reason := why_meaningless(cell, seed)))
    results = list(run_matrix(cells, seed))
    if not results:
        console.print(f"no cell that means something matches {' '.join(patterns)}")
        report.show_meaningless(console, reasons)
        return 1
    if len(results) <= 20:
        _list(console, results)
    else:
        report.show_grid(console, results)
        report.show_detection(console, results)
        report.show_meaningless(console, reasons)
    num_failed = report.show_failures(console, results, seed)
    took_s = time.perf_counter() - started_at
    console.print(f"seed {seed}: {len(results)} cells, {num_failed} failed, {took_s:.1f} s")
    return num_failed


def _list(console: Console, results: list[CellResult]) -> None:
    for result in results:
        noticed = "-" if result.detection_s is None else f"{result.detection_s:.2f} s"
        console.print(f"{result.name}: {result.outcome}, noticed after {noticed}", soft_wrap=True)


def _real(console: Console, seed: int) -> int:
    from tests.faults.real_cells import run_selection  # starts clusters: only when asked for

    results = []
    for result in run_selection(seed):
        results.append(result)
        _list(console, [result])
    failed = [result for result in results if not result.ok]
    for result in failed:
        console.print(f"[bold red]{result.name}[/]: {result.outcome}: {result.detail}")
        console.print(f"  python -m tests.faults --real --seed {seed}")
    console.print(f"seed {seed}: {len(results)} cells on real processes, {len(failed)} failed")
    return len(failed)


def _explore(console: Console, depth: int) -> int:
    from tests.faults.exploration import run_deep

    num_failed = 0
    for name, num_states, fault in run_deep(depth):
        console.print(f"{name}: {num_states} states" + (f": [bold red]{fault}[/]" if fault else ""))
        num_failed += bool(fault)
    return num_failed


if __name__ == "__main__":
    sys.exit(main())

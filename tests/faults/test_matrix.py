"""The fault matrix on the pure cores: each step x fault x moment has its one outcome, in time."""

from collections import Counter

import pytest

from tests.faults.cells import MESSAGE_FAULTS, Cell, Fault, Layout, Position, Step, all_cells
from tests.faults.expectations import is_meant
from tests.faults.matrix import judge, run_matrix, why_meaningless
from tests.faults.results import CellResult

SEED = 0


def story(results: list[CellResult]) -> str:
    return "\n".join(
        f"{r.name}: {r.outcome}: {r.detail}\n  python -m tests.faults --seed {SEED} --cells {r.name}"
        for r in results
        if not r.ok
    )


@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.label)
@pytest.mark.parametrize("step", Step, ids=lambda step: step.value)
def test_every_fault_at_this_step_has_its_one_outcome(step: Step, layout: Layout) -> None:
    cells = [cell for cell in all_cells() if cell.step is step and cell.layout is layout]
    if layout is Layout.TWO_PAIRS:  # a lost message is one wherever another pair stands
        cells = [cell for cell in cells if cell.fault not in MESSAGE_FAULTS]
    results = list(run_matrix(cells, SEED))
    assert len(results) > 30
    assert all(result.ok for result in results), story(results)


def test_the_table_has_an_outcome_for_exactly_what_means_something() -> None:
    disagreeing = [
        cell.name for cell in all_cells() if is_meant(cell) == bool(why_meaningless(cell, SEED))
    ]
    assert disagreeing == []


def test_most_combinations_mean_something() -> None:
    reasons = Counter(why_meaningless(cell, SEED) for cell in all_cells())
    assert reasons.pop(None) > 1700
    assert sum(reasons.values()) < 300
    assert all(reasons)


def test_a_cell_with_another_outcome_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(Step.MANIFEST, Fault.KILL_D, Position.DURING, Layout.TWO_PAIRS)
    assert judge(cell, SEED).ok
    monkeypatch.setattr("tests.faults.world.EVICTION_S", 9.0)
    late = judge(cell, SEED)
    assert not late.ok
    assert "took" in late.detail

"""A seed's selection of cells on real processes; more by `python -m tests.faults --real --seed N`."""

from tests.faults.real_cells import Fault, all_cells, run_selection, selection

SEED, NUM_CELLS = 3, 7


def test_a_selection_has_every_fault_before_any_twice_and_repeats_by_its_seed() -> None:
    chosen = selection(SEED, len(Fault))
    assert {cell.fault for cell in chosen} == set(Fault)
    assert chosen == selection(SEED, len(Fault))
    assert set(selection(SEED, 10_000)) == set(all_cells())


def test_cells_of_one_seed() -> None:
    results = list(run_selection(SEED, NUM_CELLS))
    assert len(results) == NUM_CELLS
    assert [result for result in results if not result.ok] == []

"""That matrix and exploration can fail: each safeguard that is taken out is missed."""

import pytest

from bootstrap.errors import PdserveError
from tests.faults import report
from tests.faults.cells import all_cells
from tests.faults.exploration import all_ends
from tests.faults.matrix import run_matrix
from tests.faults.mutations import MUTATIONS, Mutation

SEED = 0


def what_is_wrong(mutation: Mutation) -> list[str]:
    """What matrix or exploration complain of."""
    cells = report.matching(all_cells(), mutation.cells)
    found = [f"{r.name}: {r.detail}" for r in run_matrix(cells, SEED) if not r.ok]
    if mutation.world is not None:
        try:
            all_ends(mutation.world)
        except (AssertionError, PdserveError) as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_safeguard_that_is_taken_out_is_missed(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert what_is_wrong(mutation) == [], "wrong before anything was taken out"
    mutation.take_out(monkeypatch.setattr)
    assert what_is_wrong(mutation), "nobody notices"

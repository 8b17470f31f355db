"""Every order of events of the small clusters in `exploration`, with one fault at any moment."""

import pytest

from tests.faults.exploration import SMALL, World, all_ends

FINISHED = "finished"


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_every_order_of_events_ends_well(world: World) -> None:
    ends, num_states = all_ends(world)
    all_finish = (FINISHED,) * len(world.num_tokens)
    assert all_finish in ends
    assert num_states > 50
    if "kill lb" in world.faults:
        lost = {outcome for outcomes in ends for outcome in outcomes if outcome != FINISHED}
        assert lost == {"balancer lost"}
    else:
        assert set(ends) == {all_finish}, "a duplicate or one loss cost an answer"

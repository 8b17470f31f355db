"""An order on its way: the next group begins when the last one is done, and a fault ends it."""

from dataclasses import replace

import pytest

from cluster.orders import Add, Plan, Remove, Renew, Steps
from cluster.rollout import MAX_FAILED_STARTS, PLACE_WAIT_S, Rollout, RolloutState, Seen

READY = Seen(ready=True, placed=True, num_starts=1, num_failures=0, last_error="", words="serves")
STARTING = replace(READY, ready=False, words="loading")
PENDING = replace(STARTING, placed=False)
P0, P1, P2 = "p-0", "p-1", "p-2"


def rollout(*plan: tuple[Add | Remove | Renew, ...], otherwise: Plan = ()) -> Rollout:
    return Rollout(Steps(plan, otherwise), limit_s=60.0)


def test_engines_are_renewed_one_after_the_other() -> None:
    order, both = rollout((Renew(P0),), (Renew(P1),)), {P0: READY, P1: READY}
    assert order.step(both, 0.0) == [Renew(P0)]
    assert order.step(both, 0.1) == []  # still the old life
    draining = replace(STARTING, words="draining, 2 rooms left")
    assert order.step({P0: draining, P1: READY}, 0.2) == []
    assert order.words == "p-0: draining, 2 rooms left"
    order.heard(P0, "drained in 1.0 s")
    second = replace(READY, num_starts=2)
    assert order.step({P0: replace(second, ready=False), P1: READY}, 1.0) == []
    assert order.step({P0: second, P1: READY}, 3.0) == [Renew(P1)]
    assert order.step({P0: second, P1: second}, 5.0) == []
    assert order.state is RolloutState.DONE
    assert order.words.split("\n") == [
        "p-0: drained in 1.0 s",
        "p-0: serves again after 3.0 s",
        "p-1: serves again after 2.0 s",
    ]


def test_one_that_is_being_replaced_already_is_not_replaced_twice() -> None:
    order = rollout((Renew(P0),))
    order.step({P0: STARTING}, 0.0)
    order.step({P0: READY}, 1.0)
    assert order.state is RolloutState.DONE


def test_steps_of_a_group_go_together_and_removal_is_done_when_nothing_is_left() -> None:
    order = rollout((Add(P1), Add(P2)), (Remove(P0),))
    assert order.step({P0: READY}, 0.0) == [Add(P1), Add(P2)]
    assert order.step({P0: READY, P1: READY, P2: STARTING}, 1.0) == []
    assert order.words == "p-2: loading"
    assert order.step({P0: READY, P1: READY, P2: READY}, 2.0) == [Remove(P0)]
    assert order.step({P0: STARTING, P1: READY, P2: READY}, 3.0) == []
    assert order.step({P1: READY, P2: READY}, 4.0) == []
    assert order.state is RolloutState.DONE


def test_an_engine_that_does_not_start_ends_the_order_and_spares_the_others() -> None:
    order = rollout((Renew(P0),), (Renew(P1),))
    order.step({P0: READY, P1: READY}, 0.0)
    broken = replace(STARTING, num_failures=MAX_FAILED_STARTS, last_error="no weights")
    assert order.step({P0: broken, P1: READY}, 1.0) == []
    assert order.state is RolloutState.FAILED
    assert order.words == "p-0: does not start: no weights"
    assert order.step({P0: READY, P1: READY}, 2.0) == []


def test_an_order_does_not_last_for_ever() -> None:
    order = rollout((Add(P1),))
    order.step({}, 0.0)
    order.step({P1: PENDING}, 59.0)
    assert order.state is RolloutState.RUNNING
    order.step({P1: PENDING}, 60.0)
    assert order.state is RolloutState.FAILED
    assert order.words == "p-1: not done after 60 s: loading"


def test_an_engine_that_somebody_else_took_out_ends_the_order() -> None:
    order = rollout((Renew(P0),))
    order.step({P0: READY}, 0.0)
    order.step({}, 1.0)
    assert order.words == "p-0: was taken out meanwhile"


def test_without_a_place_for_an_extra_engine_the_only_one_restarts_where_it_is() -> None:
    order = rollout((Add(P1),), (Remove(P0),), otherwise=((Remove(P1),), (Renew(P0),)))
    assert order.step({P0: READY}, 0.0) == [Add(P1)]
    assert order.step({P0: READY, P1: PENDING}, PLACE_WAIT_S - 0.1) == []
    assert order.step({P0: READY, P1: PENDING}, PLACE_WAIT_S) == [Remove(P1)]
    assert order.step({P0: READY}, PLACE_WAIT_S + 1) == [Renew(P0)]
    order.step({P0: replace(READY, num_starts=2)}, PLACE_WAIT_S + 2)
    assert order.state is RolloutState.DONE


@pytest.mark.parametrize("extra", [STARTING, READY])
def test_an_extra_engine_that_has_a_place_is_waited_for(extra: Seen) -> None:
    order = rollout((Add(P1),), (Remove(P0),), otherwise=((Remove(P1),), (Renew(P0),)))
    order.step({P0: READY}, 0.0)
    begun = order.step({P0: READY, P1: extra}, PLACE_WAIT_S)
    assert begun == ([Remove(P0)] if extra.ready else [])


def test_nothing_to_do_is_done() -> None:
    order = rollout()
    assert order.step({}, 0.0) == []
    assert (order.state, order.words) == (RolloutState.DONE, "nothing to do")

"""The supervisor's core: events and a clock in, decisions out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.errors import IllegalTransition
from bootstrap.identity import WorkerRef, new_incarnation
from cluster.supervisor import (
    STABLE_S,
    Backoff,
    BackoffPolicy,
    Evict,
    LifeState,
    Start,
    Supervisor,
)


def ref(worker_id: str) -> WorkerRef:
    return WorkerRef(worker_id, new_incarnation())


def test_everything_desired_starts_at_once_and_only_once() -> None:
    core = Supervisor(["p", "d"], now=0.0)
    assert core.reconcile(0.0) == [Start("p"), Start("d")]
    assert core.reconcile(100.0) == []


def test_a_death_evicts_its_incarnation_and_touches_no_survivor() -> None:
    core = Supervisor(["p", "d"], now=0.0)
    core.reconcile(0.0)
    mine, other = ref("p"), ref("d")
    for worker_ref in (mine, other):
        core.named(worker_ref.worker_id, worker_ref)
        core.serving(worker_ref.worker_id, 1.0)
    (backoff,) = core.died("p", "killed", 2.0)
    assert core.gone("p") == [Evict(mine)]
    assert isinstance(backoff, Backoff)
    assert backoff.worker_id == "p"
    survivor = core.status(2.0)[1]
    assert (survivor.state, survivor.ref, survivor.num_starts) == (LifeState.SERVING, other, 1)
    assert core.reconcile(2.0 + backoff.delay_s) == [Start("p")]
    assert core.status(3.0)[0].ref is None  # the new life has not said who it is


def test_a_death_before_the_worker_had_a_name_evicts_nobody() -> None:
    core = Supervisor(["p"], now=0.0)
    core.reconcile(0.0)
    (backoff,) = core.died("p", "no weights", 0.0)
    assert core.gone("p") == []
    assert backoff == Backoff("p", BackoffPolicy().first_s, "no weights")


def test_while_the_old_process_may_live_nobody_is_evicted_or_replaced() -> None:
    core = Supervisor(["p", "d"], now=0.0)
    core.reconcile(0.0)
    mine = ref("p")
    core.named("p", mine)
    core.died("p", "stuck", 1.0)
    (status, _) = core.status(1.0)
    assert (status.state, status.ref, status.retry_in_s) == (LifeState.ENDING, mine, 0.0)
    assert core.reconcile(100.0) == []
    assert core.next_due_s(100.0) is None
    assert core.gone("p") == [Evict(mine)]
    assert core.reconcile(100.0) == [Start("p")]
    with pytest.raises(IllegalTransition, match="starting -> waiting"):
        core.gone("p")


def test_a_crash_loop_backs_off_up_to_the_bound_and_keeps_the_last_error() -> None:
    core, now, delays = Supervisor(["p"], now=0.0), 0.0, []
    for number in range(10):
        assert core.reconcile(now) == [Start("p")]
        (backoff,) = core.died("p", f"error {number}", now)
        core.gone("p")
        assert isinstance(backoff, Backoff)
        assert core.reconcile(now + backoff.delay_s - 0.01) == []
        assert core.next_due_s(now) == pytest.approx(backoff.delay_s)
        delays.append(backoff.delay_s)
        now += backoff.delay_s
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays[-1] == 10.0
    (status,) = core.status(now)
    assert (status.num_starts, status.num_failures, status.last_error) == (10, 10, "error 9")


def test_a_life_that_served_long_ends_the_crash_loop() -> None:
    core = Supervisor(["p"], now=0.0)
    now = 0.0
    for _ in range(5):
        core.reconcile(now)
        core.died("p", "again", now)
        core.gone("p")
        now += 10.0
    core.reconcile(now)
    core.serving("p", now)
    (backoff,) = core.died("p", "at last", now + STABLE_S)
    assert backoff == Backoff("p", BackoffPolicy().first_s, "at last")


def test_a_move_that_the_table_lacks_is_a_bug_told_with_its_story() -> None:
    core = Supervisor(["p"], now=0.0)
    with pytest.raises(IllegalTransition, match=r"worker p, start 0.*waiting -> serving"):
        core.serving("p", 0.0)
    with pytest.raises(IllegalTransition):
        core.died("p", "never lived", 0.0)


def test_nobody_waiting_means_nothing_is_due() -> None:
    core = Supervisor(["p"], now=0.0)
    assert core.next_due_s(0.0) == 0.0
    core.reconcile(0.0)
    assert core.next_due_s(0.0) is None


@given(st.lists(st.sampled_from(["tick", "serve", "die", "go"]), max_size=60))
def test_no_history_gives_a_worker_two_lives_or_an_eviction_of_another(events: list[str]) -> None:
    core, now, alive = Supervisor(["p"], now=0.0), 0.0, None
    for event in events:
        state = core.status(now)[0].state
        if event == "tick":
            now += 3.0
            for _ in core.reconcile(now):
                assert alive is None
                alive = ref("p")
                core.named("p", alive)
        elif event == "serve" and state is LifeState.STARTING:
            core.serving("p", now)
        elif event == "die" and state in (LifeState.STARTING, LifeState.SERVING):
            assert not [d for d in core.died("p", "x", now) if isinstance(d, Evict)]
        elif event == "go" and state is LifeState.ENDING:
            assert alive is not None
            assert core.gone("p") == [Evict(alive)]
            alive = None
        assert (alive is None) == (core.status(now)[0].state is LifeState.WAITING)

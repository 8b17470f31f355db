"""Changes of what a supervisor is told to keep alive: workers join, leave in order, are replaced."""

from hypothesis import given
from hypothesis import strategies as st

from bootstrap.identity import WorkerRef, new_incarnation
from cluster.supervisor import (
    Backoff,
    BackoffPolicy,
    Drain,
    Evict,
    Forget,
    Kill,
    LifeState,
    Start,
    Supervisor,
)


def serving(*worker_ids: str) -> tuple[Supervisor, dict[str, WorkerRef]]:
    core, refs = Supervisor(worker_ids, now=0.0), {}
    core.reconcile(0.0)
    for worker_id in worker_ids:
        refs[worker_id] = WorkerRef(worker_id, new_incarnation())
        core.named(worker_id, refs[worker_id])
        core.serving(worker_id, 0.0)
    return core, refs


def states(core: Supervisor) -> dict[str, LifeState]:
    return {status.worker_id: status.state for status in core.status(0.0)}


def test_a_worker_that_is_desired_later_starts_like_the_others() -> None:
    core, _ = serving("p-0")
    core.desire("p-1", 5.0)
    assert core.reconcile(5.0) == [Start("p-1")]
    assert list(states(core)) == ["p-0", "p-1"]


def test_an_undesired_worker_drains_ends_and_is_forgotten() -> None:
    core, refs = serving("p-0", "p-1")
    assert core.undesire("p-1") == [Drain("p-1")]
    assert states(core) == {"p-0": LifeState.SERVING, "p-1": LifeState.DRAINING}
    assert core.status(1.0)[1].leaving
    assert core.undesire("p-1") == []  # a drain is idempotent
    core.drained("p-1", 2.0)
    assert core.reconcile(100.0) == []
    assert core.gone("p-1") == [Evict(refs["p-1"]), Forget("p-1")]
    assert list(states(core)) == ["p-0"]
    assert core.reconcile(200.0) == []


def test_a_leaving_worker_that_dies_is_not_brought_back() -> None:
    core, refs = serving("p-0")
    core.undesire("p-0")
    assert core.died("p-0", "killed", 1.0) == []
    assert core.gone("p-0") == [Evict(refs["p-0"]), Forget("p-0")]
    assert core.next_due_s(1.0) is None


def test_an_undesired_worker_that_never_served_is_killed_or_forgotten_at_once() -> None:
    core = Supervisor(["p-0", "p-1"], now=0.0)
    assert core.undesire("p-1") == [Forget("p-1")]
    core.reconcile(0.0)
    assert core.undesire("p-0") == [Kill("p-0")]
    assert core.died("p-0", "not wanted", 1.0) == []
    assert core.gone("p-0") == [Forget("p-0")]
    assert core.status(1.0) == ()


def test_a_renewed_worker_starts_again_at_once_and_without_blame() -> None:
    core, refs = serving("d-0")
    for number in range(3):
        assert core.renew("d-0") == [Drain("d-0")]
        assert core.renew("d-0") == []
        core.drained("d-0", 5.0)
        assert core.gone("d-0") == [Evict(refs["d-0"])]
        assert core.reconcile(5.0) == [Start("d-0")]
        core.named("d-0", refs["d-0"])
        core.serving("d-0", 6.0)
        (status,) = core.status(6.0)
        assert (status.num_starts, status.num_failures) == (number + 2, 0)


def test_a_renewed_worker_that_breaks_while_it_drains_starts_again_after_a_pause() -> None:
    core, _ = serving("d-0")
    core.renew("d-0")
    pause_s = BackoffPolicy().first_s
    assert core.died("d-0", "lost", 1.0) == [Backoff("d-0", pause_s, "lost")]
    core.gone("d-0")
    assert core.reconcile(1.0) == []
    assert core.reconcile(1.0 + pause_s) == [Start("d-0")]


def test_a_worker_whose_life_is_not_serving_needs_no_renewal() -> None:
    core = Supervisor(["d-0"], now=0.0)
    assert core.renew("d-0") == []
    core.reconcile(0.0)
    assert core.renew("d-0") == []
    assert states(core) == {"d-0": LifeState.STARTING}


def test_a_worker_that_is_wanted_back_while_it_leaves_begins_another_life() -> None:
    core, refs = serving("p-0")
    core.undesire("p-0")
    core.desire("p-0", 1.0)
    core.drained("p-0", 2.0)
    assert core.gone("p-0") == [Evict(refs["p-0"])]
    assert core.reconcile(2.0) == [Start("p-0")]


@given(
    st.lists(
        st.sampled_from(["tick", "serve", "die", "go", "want", "leave", "renew", "drained"]),
        max_size=80,
    )
)
def test_no_history_of_wishes_gives_a_worker_two_lives_or_leaves_one_behind(
    events: list[str],
) -> None:
    core, now, wanted = Supervisor(["p"], now=0.0), 0.0, True
    for event in events:
        state = states(core).get("p")
        if event == "tick":
            now += 20.0
            assert core.reconcile(now) == ([Start("p")] if state is LifeState.WAITING else [])
        elif event == "serve" and state is LifeState.STARTING:
            core.serving("p", now)
        elif event == "die" and state in (
            LifeState.STARTING,
            LifeState.SERVING,
            LifeState.DRAINING,
        ):
            assert len(core.died("p", "x", now)) == (1 if wanted else 0)
        elif event == "drained" and state is LifeState.DRAINING:
            core.drained("p", now)
        elif event == "go" and state is LifeState.ENDING:
            assert core.gone("p") == ([] if wanted else [Forget("p")])
        elif event == "want":
            core.desire("p", now)
            wanted = True
        elif event == "leave" and state is not None:
            core.undesire("p")
            wanted = False
        elif event == "renew" and state is not None:
            assert core.renew("p") == ([Drain("p")] if state is LifeState.SERVING else [])
        assert "p" in states(core) or not wanted

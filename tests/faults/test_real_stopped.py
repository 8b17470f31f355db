"""SIGSTOP of every kind of process: seen within seconds, survived, and harmless when it wakes.

A stopped process keeps its connections, its memory and its place in the cluster: nothing ends by itself.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.real_child import WRITE, Hold
from tests.faults.real_clients import ANSWERED, BROKEN_OFF, REFUSED, Answer, Clients, Shape
from tests.faults.real_cluster import RealCluster
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

BUSY_S = 10.0  # what a busy test host may add to any of them
SEEN_WITHIN_S = 5.0 + BUSY_S
TOLD_WITHIN_S = 2.0 + BUSY_S  # after the cluster has seen it
PAIR_WAIT_S = 2.0  # for another pair, if there is none

NUM_STREAMS = 6
SHAPES = [Shape((10 + i, *range(20, 45)), 400, i % 2 * 1.0, seed=i) for i in range(NUM_STREAMS)]
# Streams that all have to be cut: no engine is done with one before it is stopped.
ENDLESS = [replace(shape, max_tokens=5000) for shape in SHAPES]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    folder = tmp_path_factory.mktemp("stopped")
    with RealCluster(make_tiny_model(folder / "model"), folder) as running:
        yield running


@pytest.fixture(scope="module")
def expected(cluster: RealCluster) -> list[list[int]]:
    """What each shape's stream says when nothing is wrong."""
    clients = Clients(cluster.url)
    answers = [clients.begin(shape) for shape in SHAPES]
    clients.wait()
    assert {a.outcome for a in answers} == {ANSWERED}
    return [a.token_ids for a in answers]


def begin(cluster: RealCluster, shapes: Sequence[Shape] = SHAPES) -> tuple[Clients, list[Answer]]:
    clients = Clients(cluster.url)
    return clients, [clients.begin(shape) for shape in shapes]


def stop_and_see(cluster: RealCluster, name: str) -> tuple[float, float]:
    """Stop it; when, and how long until the cluster knew."""
    life = cluster.processes[name]
    stopped_at = cluster.stop(name)
    wait_for(lambda: cluster.misses(life), what=f"{name} is missed")
    seen_s = time.monotonic() - stopped_at
    assert seen_s < SEEN_WITHIN_S
    return stopped_at, seen_s


def wake(cluster: RealCluster, name: str) -> None:
    """It is the same incarnation that comes back, and all that it held is given back."""
    life = cluster.processes[name]
    cluster.resume(name)
    life.let_go()
    wait_for(lambda: cluster.knows(life), what=f"{name} is back")
    cluster.wait_idle()


def check_told(answers: list[Answer], stopped_at: float, seen_s: float) -> None:
    for answer in answers:
        assert answer.silence_after(stopped_at) < seen_s + TOLD_WITHIN_S, answer.detail


@pytest.mark.parametrize(
    "step", [Hold("TokenBatch"), Hold(WRITE), Hold("HandoffRecord")], ids=lambda hold: hold.step
)
def test_a_prefill_engine_stops_at_a_step(
    cluster: RealCluster, expected: list[list[int]], step: Hold
) -> None:
    """Before its first token, before a write, before its commit: another pair goes on."""
    life = cluster.processes["p0"]
    life.hold(step)
    clients, answers = begin(cluster)
    life.wait_held()
    stopped_at, seen_s = stop_and_see(cluster, "p0")
    clients.wait()
    check_told(answers, stopped_at, seen_s)
    assert [(a.outcome, a.token_ids) for a in answers] == [(ANSWERED, ids) for ids in expected]
    wake(cluster, "p0")
    assert [Clients(cluster.url).ask(s).token_ids for s in SHAPES[:2]] == expected[:2]


def test_a_decode_engine_stops_in_the_middle(
    cluster: RealCluster, expected: list[list[int]]
) -> None:
    clients, answers = begin(cluster)
    wait_for(lambda: all(len(a.token_ids) > 20 for a in answers), what="all decode")
    stopped_at, seen_s = stop_and_see(cluster, "d0")
    clients.wait()
    check_told(answers, stopped_at, seen_s)
    assert [(a.outcome, a.token_ids) for a in answers] == [(ANSWERED, ids) for ids in expected]
    wake(cluster, "d0")


@pytest.mark.parametrize("name", ["bootstrap", "lb"])
def test_a_stop_of_those_in_the_middle_is_a_pause(
    cluster: RealCluster, expected: list[list[int]], name: str
) -> None:
    """Longer than any lease. Engines go on without the service; nobody is taken for dead afterwards."""
    before = wait_for(cluster.members)
    clients, answers = begin(cluster)
    wait_for(lambda: all(len(a.token_ids) > 5 for a in answers), what="all decode")
    stopped_at = cluster.stop(name)
    if name == "bootstrap":
        wait_for(lambda: all(a.ended_at for a in answers), 60.0, "answers without the service")
    wait_for(lambda: time.monotonic() - stopped_at > 3.5, what="a pause longer than a lease")
    cluster.resume(name)
    clients.wait()
    assert [(a.outcome, a.token_ids) for a in answers] == [(ANSWERED, ids) for ids in expected]
    assert wait_for(cluster.members) == before
    cluster.wait_idle()


def test_without_another_pair_clients_are_told(tmp_path: Path) -> None:
    model_dir = make_tiny_model(tmp_path / "model", max_position_embeddings=8192)
    with RealCluster(
        model_dir, tmp_path, num_prefill=1, num_decode=1, num_blocks=8192, max_model_len=8192
    ) as cluster:
        undisturbed = Clients(cluster.url).ask(SHAPES[0])
        clients, answers = begin(cluster, ENDLESS)
        wait_for(lambda: all(len(a.token_ids) > 5 for a in answers), what="all decode")
        stopped_at, seen_s = stop_and_see(cluster, "d0")
        refused = Clients(cluster.url).ask(SHAPES[0])
        clients.wait()
        for answer in answers:
            assert answer.outcome == BROKEN_OFF, answer
            assert answer.ended_at - stopped_at < seen_s + PAIR_WAIT_S + TOLD_WITHIN_S
        assert refused.outcome == REFUSED
        wake(cluster, "d0")
        again = Clients(cluster.url).ask(SHAPES[0])
        assert (again.outcome, again.token_ids) == (ANSWERED, undisturbed.token_ids)

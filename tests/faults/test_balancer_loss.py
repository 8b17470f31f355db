"""kill -9, SIGSTOP and restart of one of two load balancers, on real processes and real NIXL.

Its rooms are found and released by the engines alone; clients of the other balancer notice nothing.
"""

import signal
import time
from collections.abc import Iterator
from operator import sub
from typing import Any

import httpx
import pytest

from cluster.balancer import inspection
from tests.faults.real_clients import ANSWERED, CUT, REFUSED, Answer, Clients, Shape
from tests.support.balancer_process import BalancerProcess
from tests.support.process_cluster import MODEL_NAME, ProcessCluster
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

NUM_STREAMS = 6
NUM_TOKENS = 1500
ENDLESS = Shape((1, 2, 3), 10_000)  # no engine is done with it before a lease runs out
NUM_LONG, LONG_TOKENS = 3, 3000  # nor with these, whose ends clients wait for
RELEASED_WITHIN_S = 20.0  # a lease of 2.5 s, a step, and slack of a busy test host
NUM_TRIES = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    longest = 2 * ENDLESS.max_tokens
    model_dir = make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=longest)
    folder = tmp_path_factory.mktemp("logs")
    with ProcessCluster(
        model_dir, folder, transfer="nixl", num_blocks=8192, max_model_len=longest
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def balancers(
    cluster: ProcessCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BalancerProcess, BalancerProcess]]:
    """Two more besides the cluster's own, which only looks on."""
    folder = tmp_path_factory.mktemp("balancers")
    ends = cluster.service.endpoint
    one = BalancerProcess(ends, cluster.model_dir, MODEL_NAME, folder / "one.log")
    two = BalancerProcess(ends, cluster.model_dir, MODEL_NAME, folder / "two.log")
    with one, two:
        one.wait_ready()
        two.wait_ready()
        yield one, two


def shapes(num: int = NUM_STREAMS, num_tokens: int = NUM_TOKENS) -> list[Shape]:
    """Greedy and sampled streams with prompts of their own."""
    return [
        Shape((10 + n, *range(20, 45)), num_tokens, temperature=n % 2 / 2, seed=n)
        for n in range(num)
    ]


def streams(clients: Clients, asked: list[Shape]) -> list[Answer]:
    """Streams that run: each has told some tokens."""
    answers = [clients.begin(shape) for shape in asked]
    wait_for(lambda: all(len(a.token_ids) > 5 for a in answers), 60.0, "all streams run")
    return answers


def rooms_of(cluster: ProcessCluster, balancer: BalancerProcess) -> list[dict[str, Any]]:
    """Rooms of that balancer on both engines, as the ledger has them."""
    return rooms_at("p0", cluster, balancer) + rooms_at("d0", cluster, balancer)


def rooms_at(
    worker: str, cluster: ProcessCluster, balancer: BalancerProcess
) -> list[dict[str, Any]]:
    """Rooms of that balancer on one engine, by its next answer."""
    name = f"balancer-127.0.0.1-{balancer.port}@"
    engine = wait_for(lambda: answer_of(worker, cluster), 60.0, f"an answer of {worker}")
    return [room for room in engine["rooms"] if (room["balancer"] or "").startswith(name)]


def answer_of(worker: str, cluster: ProcessCluster) -> dict[str, Any] | None:
    """An engine's ledger, if it is a member and answers in time."""
    reply = httpx.get(f"{cluster.balancer.url}/debug/ledger", timeout=60)
    engines = reply.json()["engines"]
    return next((e for e in engines if e["worker"] == worker and e["answered"]), None)


def balancers_of(balancer: BalancerProcess) -> dict[str, str]:
    """Incarnations of all balancers, as that one sees them."""
    members = httpx.get(f"{balancer.url}/status", timeout=60).json()["balancers"]
    return {member["worker"]: member["incarnation"] for member in members}


def lost(cluster: ProcessCluster) -> list[int]:
    """How many balancers each engine has lost, by its last heartbeat."""
    members = cluster.balancer.get("/status").json()["members"]
    return [member["counters"]["balancers_lost"] for member in members]


@pytest.fixture(scope="module")
def undisturbed(balancers: tuple[BalancerProcess, BalancerProcess]) -> list[str]:
    """The texts of all streams when nothing happens."""
    clients = Clients(balancers[0].url)
    answers = streams(clients, shapes())
    clients.wait()
    assert [a.outcome for a in answers] == [ANSWERED] * NUM_STREAMS
    return [a.text for a in answers]


def test_a_killed_balancers_rooms_are_released_and_the_other_notices_nothing(
    cluster: ProcessCluster,
    balancers: tuple[BalancerProcess, BalancerProcess],
    undisturbed: list[str],
) -> None:
    one, two = balancers
    before = lost(cluster)
    kept, doomed = Clients(one.url), Clients(two.url)
    theirs, ours = streams(doomed, [ENDLESS, ENDLESS]), streams(kept, shapes())
    assert rooms_of(cluster, two)
    killed_at = two.kill()
    wait_for(lambda: not rooms_of(cluster, two), RELEASED_WITHIN_S, "rooms released")
    released_s = time.monotonic() - killed_at
    wait_for(lambda: min(map(sub, lost(cluster), before)) > 0, what="both engines saw it go")
    doomed.wait()
    kept.wait()
    assert {a.outcome for a in theirs} == {CUT}
    assert [(a.outcome, a.detail) for a in ours] == [(ANSWERED, "")] * NUM_STREAMS
    assert [a.text for a in ours] == undisturbed
    two.start()
    two.wait_ready()
    ready_s = time.monotonic() - killed_at - released_s
    again = Clients(two.url)
    answers = streams(again, shapes())
    again.wait()
    assert [a.text for a in answers] == undisturbed
    gap_s = max(a.longest_silence() for a in ours)
    print(f"released after {released_s:.1f} s, longest gap elsewhere {gap_s:.2f} s, {ready_s=:.1f}")
    wait_for(cluster.idle, 60.0, "all pages back")


def test_a_restarted_balancer_ends_its_former_lifes_rooms_at_once(
    cluster: ProcessCluster, balancers: tuple[BalancerProcess, BalancerProcess]
) -> None:
    _, two = balancers
    former = balancers_of(two)
    clients = Clients(two.url)
    streams(clients, [ENDLESS, ENDLESS])
    two.kill()
    two.start()
    two.wait_ready()
    now = balancers_of(two)
    assert now.keys() == former.keys()
    changed = {worker for worker in now if now[worker] != former[worker]}
    assert changed == {f"balancer-127.0.0.1-{two.port}"}
    clients.wait()
    wait_for(cluster.idle, 60.0, "all pages back")


def test_streams_of_a_balancer_that_was_not_heard_go_on(
    cluster: ProcessCluster, balancers: tuple[BalancerProcess, BalancerProcess]
) -> None:
    one, two = balancers
    before = lost(cluster)
    clients = Clients(two.url)
    answers = streams(clients, shapes(NUM_LONG, LONG_TOKENS))
    two.signal(signal.SIGSTOP)
    wait_for(lambda: not rooms_of(cluster, two), RELEASED_WITHIN_S, "rooms released")
    two.signal(signal.SIGCONT)
    clients.wait()
    assert [(a.outcome, a.detail) for a in answers] == [(ANSWERED, "")] * NUM_LONG
    metrics = httpx.get(f"{two.url}/metrics", timeout=60).text
    assert 'retries_total{reason="balancer_lost"}' in metrics
    wait_for(lambda: min(map(sub, lost(cluster), before)) > 0, what="both engines saw it go")
    wait_for(lambda: len(balancers_of(one)) == 3, what="all balancers are back")
    undisturbed = streams(clients, shapes(NUM_LONG, LONG_TOKENS))
    clients.wait()
    assert [a.text for a in answers] == [a.text for a in undisturbed]
    wait_for(cluster.idle, 60.0, "all pages back")


def killed_with_waiting_dispatches(
    cluster: ProcessCluster, two: BalancerProcess, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Kill it while an engine is stopped; whether that was before its lease ended all streams."""
    clients = Clients(two.url)
    cluster.signal("p0", signal.SIGSTOP)
    try:
        answers = [clients.begin(ENDLESS) for _ in range(2)]
        with monkeypatch.context() as patch:
            # Looking again must not wait for the stopped engine until its lease is over.
            patch.setattr(inspection, "DEADLINE_S", 0.2)
            wait_for(
                lambda: any(a.ended_at for a in answers) or len(rooms_at("d0", cluster, two)) == 2,
                60.0,
                "dispatches",
            )
        if not any(a.ended_at for a in answers):
            two.kill()
    finally:
        cluster.signal("p0", signal.SIGCONT)
    clients.wait()
    outcomes = {a.outcome for a in answers}
    if outcomes == {CUT}:
        return True
    assert REFUSED in outcomes
    if CUT in outcomes:
        two.start()
        two.wait_ready()
    wait_for(lambda: len(cluster.members()) == 2, 60.0, "both engines")
    wait_for(cluster.idle, 60.0, "all pages back")
    return False


def test_dispatches_that_waited_while_their_balancer_died_hold_nothing(
    cluster: ProcessCluster,
    balancers: tuple[BalancerProcess, BalancerProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, two = balancers
    tries = (killed_with_waiting_dispatches(cluster, two, monkeypatch) for _ in range(NUM_TRIES))
    assert any(tries), "the stopped engine's lease was over each time"
    wait_for(lambda: len(cluster.members()) == 2, 60.0, "both engines")
    wait_for(lambda: not rooms_of(cluster, two), 60.0, "rooms released")
    wait_for(cluster.idle, 60.0, "all pages back")
    two.start()
    two.wait_ready()


def test_a_balancer_that_stops_in_order_says_goodbye(
    cluster: ProcessCluster, balancers: tuple[BalancerProcess, BalancerProcess]
) -> None:
    one, two = balancers
    name = f"balancer-127.0.0.1-{two.port}"
    wait_for(lambda: name in balancers_of(one), what="it is known")
    two.signal(signal.SIGTERM)
    assert two.wait_ended(60.0) == 0
    wait_for(lambda: name not in balancers_of(one), what="it is known no more")
    wait_for(lambda: "left: unregistered" in cluster.log_of("d0"), what="an engine heard it too")

"""A client that goes away, at every stage: both engines are free at once, as their ledgers show.

Nothing but the client's leaving can free what these tests wait for, so no clock has to say "at once".
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bootstrap.messages import AbortRoom
from cluster.balancer import probe
from decode import quarantine
from engine.core import Received
from engine.host import EngineHost
from kv_transfer.backends.fake import FakeBackend
from kv_transfer.backends.faults import Fault, FaultPlan, Hold
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for
from tests.support.waiting_client import wait_for_requests

IDLE_WITHIN_S = 30.0
PROMPT = list(range(10, 34))  # 6 blocks


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def no_probes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for readiness and no more: a later one would stand in the queues that are looked at here."""
    monkeypatch.setattr(probe, "READY_INTERVAL_S", 600.0)


class Holding(FaultPlan):
    """Writes begun while `on` are held until `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.held: list[int] = []
        self.backends: list[FakeBackend] = []

    __setattr__ = object.__setattr__  # the base is frozen; this plan is the test's to change

    def at(self, index: int) -> Fault | None:
        if not self.on:
            return None
        self.held.append(index)
        return Hold()

    def release(self) -> None:
        self.on = False
        for index in self.held:
            self.backends[0].release(index)


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> Holding:
    plan = Holding()

    def make(name: str, agent_name: str, host: str) -> FakeBackend:
        assert name == "fake"
        if not agent_name.startswith("p"):
            return FakeBackend(agent_name)
        plan.backends.append(FakeBackend(agent_name, plan))
        return plan.backends[-1]

    monkeypatch.setattr("engine.assembly.make_backend", make)
    return plan


class Client:
    """A raw connection, to leave at any moment."""

    def __init__(self, balancer: HttpBalancer, *, stream: bool, max_tokens: int, seed: int) -> None:
        body = json.dumps(
            {
                "model": MODEL_NAME,
                "prompt": [seed, *PROMPT],
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "stream": stream,
            }
        )
        host, port = balancer.url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._socket.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )

    def read_until(self, text: bytes) -> None:
        received = b""
        while text not in received:
            received += self._socket.recv(65536)

    def leave(self) -> None:
        self._socket.close()


@contextmanager
def serving(cluster: EngineCluster, model_dir: Path, **settings: float) -> Iterator[HttpBalancer]:
    with HttpBalancer(cluster.bootstrap, model_dir, MODEL_NAME, **settings) as balancer:
        yield balancer


def is_told(engine: EngineHost) -> bool:
    """Whether an engine that is held in a step will hear next that a room has to end."""
    waiting = list(engine._loop.inbox._events)
    return any(isinstance(e, Received) and isinstance(e.message, AbortRoom) for e in waiting)


def test_before_dispatch(model_dir: Path) -> None:
    with (
        EngineCluster(model_dir, num_decode=0) as cluster,
        serving(cluster, model_dir, pair_wait_s=60) as balancer,
    ):
        client = Client(balancer, stream=False, max_tokens=8, seed=3)
        wait_for_requests(balancer, 1)  # in HTTP: the core knows none that has no pair yet
        client.leave()
        wait_for_requests(balancer, 0)
        assert cluster.engines["p0"].load().num_rooms == 0


def test_in_the_prefill_queue(model_dir: Path, holding: Holding) -> None:
    with (
        EngineCluster(model_dir, prefill={"num_blocks": 10}) as cluster,
        serving(cluster, model_dir) as balancer,
    ):
        balancer.wait_ready()
        holding.on = True
        first = Client(balancer, stream=True, max_tokens=8, seed=3)
        wait_for(lambda: holding.held, what="the first is in transfer")
        second = Client(balancer, stream=True, max_tokens=8, seed=4)
        p0 = cluster.engines["p0"]
        wait_for(lambda: p0.load().num_queued == 1, what="the second is in the queue")
        second.leave()
        wait_for(lambda: p0.load().num_queued == 0, what="the queue is empty")
        wait_for(lambda: cluster.engines["d0"].load().num_rooms == 1, what="one room")
        holding.release()
        first.read_until(b"[DONE]")
        first.leave()
        cluster.wait_idle(IDLE_WITHIN_S)


def test_in_prefill(model_dir: Path) -> None:
    with (
        EngineCluster(model_dir, max_num_batched_tokens=1) as cluster,
        serving(cluster, model_dir) as balancer,
    ):
        balancer.wait_ready()
        cluster.wait_idle(IDLE_WITHIN_S)
        p0 = cluster.engines["p0"]
        num_cached = p0.load().pages["cached"]
        with cluster.gate("p0") as gate:
            client = Client(balancer, stream=True, max_tokens=8, seed=3)
            gate.wait_entered()
            client.leave()
            wait_for(lambda: is_told(p0), what="prefill is told")
        cluster.wait_idle(IDLE_WITHIN_S)
        assert p0.load().pages["cached"] == num_cached, "no block of its prompt was computed"


def test_in_transfer(model_dir: Path, holding: Holding, monkeypatch: pytest.MonkeyPatch) -> None:
    # The pages come back by the writer's first word: not after a time, nor when it is asked again.
    monkeypatch.setattr(quarantine, "SETTLE_S", 600.0)
    monkeypatch.setattr(quarantine, "ASK_AGAIN_S", 600.0)
    with EngineCluster(model_dir) as cluster, serving(cluster, model_dir) as balancer:
        balancer.wait_ready()
        holding.on = True
        client = Client(balancer, stream=True, max_tokens=8, seed=3)
        wait_for(lambda: holding.held, what="a write is held")
        client.leave()
        d0 = cluster.engines["d0"]
        quarantined = lambda: d0.load().pages["quarantined"]  # noqa: E731
        assert wait_for(quarantined, what="pages kept back while the write may land")
        assert d0.load().num_rooms == 0
        holding.release()
        cluster.wait_idle(IDLE_WITHIN_S)


def test_waiting_in_decode(model_dir: Path, holding: Holding) -> None:
    with (
        EngineCluster(model_dir, decode={"num_blocks": 10}) as cluster,
        serving(cluster, model_dir) as balancer,
    ):
        balancer.wait_ready()
        holding.on = True
        first = Client(balancer, stream=True, max_tokens=8, seed=3)
        wait_for(lambda: holding.held, what="the first holds pages of decode")
        second = Client(balancer, stream=True, max_tokens=8, seed=4)
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        both = lambda: all(e.load().num_rooms == 2 for e in (p0, d0))  # noqa: E731
        wait_for(both, what="the second waits in decode")
        wait_for(lambda: p0.load().num_queued + p0.load().num_running == 0, what="both computed")
        second.leave()
        one_room = lambda: all(e.load().num_rooms == 1 for e in cluster.engines.values())  # noqa: E731
        wait_for(one_room, what="one room on each side")
        holding.release()
        first.read_until(b"[DONE]")
        first.leave()
        cluster.wait_idle(IDLE_WITHIN_S)


@pytest.mark.parametrize("stream", [True, False])
def test_while_decoding(model_dir: Path, stream: bool) -> None:
    num_tokens = 2000
    with (
        EngineCluster(model_dir, num_blocks=512) as cluster,
        serving(cluster, model_dir) as balancer,
    ):
        balancer.wait_ready()
        cluster.wait_idle(IDLE_WITHIN_S)
        d0 = cluster.engines["d0"]
        with cluster.gate("d0") as gate:
            client = Client(balancer, stream=stream, max_tokens=num_tokens, seed=3)
            gate.wait_entered()
            client.leave()
            wait_for(lambda: is_told(d0), what="decode is told")
            num_rounds = d0._loop.num_rounds
        cluster.wait_idle(IDLE_WITHIN_S)
        assert d0._loop.num_rounds - num_rounds < num_tokens, "it did not go on to the end"
        wait_for(lambda: 'outcome="cancelled"' in balancer.get("/metrics").text, what="its outcome")

"""What a lost host had under way does not arrive once its connections are shut down."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from bootstrap.identity import Role
from kv_transfer.backends.port import TransferBackend
from kv_transfer.backends.registry import make_backend
from kv_transfer.layout import Run
from kv_transfer.severing import sever
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.transfer_process import HOST, TargetProcess
from tests.support.waiting import wait_for

MIB = 1 << 20
ARENA = 64 * MIB  # more than sockets hold
LOST, OTHER = "127.0.0.2", "127.0.0.3"


def connection_from(address: str, closers: ExitStack) -> tuple[socket.socket, socket.socket]:
    """The far end, at `address`, and ours."""
    listener = closers.enter_context(socket.create_server((HOST, 0)))
    far = socket.create_connection(listener.getsockname(), 60, source_address=(address, 0))
    ours, _ = listener.accept()
    return closers.enter_context(far), closers.enter_context(ours)


def test_only_connections_with_that_host_end() -> None:
    with ExitStack() as closers:
        lost, from_lost = connection_from(LOST, closers)
        other, from_other = connection_from(OTHER, closers)
        lost.sendall(b"before")
        wait_for(lambda: from_lost.recv(16, socket.MSG_PEEK) == b"before", what="its bytes")
        assert sever(LOST) == 1
        assert from_lost.recv(16) == b"before"
        assert from_lost.recv(16) == b""
        other.sendall(b"still here")
        assert from_other.recv(16) == b"still here"


def test_what_comes_afterwards_is_answered_with_a_reset() -> None:
    with ExitStack() as closers:
        lost, from_lost = connection_from(LOST, closers)
        assert sever(LOST) == 1
        lost.sendall(b"late")
        with pytest.raises(ConnectionError):
            wait_for(lambda: lost.sendall(b"later"), what="a reset")
        with pytest.raises(ConnectionError):
            from_lost.recv(16)


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")


@pytest.fixture
def target(tcp: None) -> Iterator[TargetProcess]:
    target = TargetProcess("nixl", "target-0", ARENA)
    yield target
    assert target.exit() == 0


@pytest.fixture
def writer(tcp: None) -> Iterator[TransferBackend]:
    writer = make_backend("nixl", "writer-0", HOST)
    writer.allocate(ARENA)[:] = b"w" * ARENA
    yield writer
    writer.close()


def written(writer: TransferBackend, target: TargetProcess, run: Run) -> str | None:
    """Write it and wait; the error."""
    writer.write(target.name, [run])
    (outcome,) = wait_for(writer.poll, what="an outcome")
    return outcome.error


def test_a_write_that_was_half_sent_ends_there_and_others_may_write(
    writer: TransferBackend, target: TargetProcess
) -> None:
    writer.add_peer(target.metadata)
    assert written(writer, target, Run(0, 0, MIB)) is None  # they are connected
    target.ask("fill", 0)
    target.ask("close_inbound")  # nobody there reads: the rest stays with the writer

    writer.write(target.name, [Run(0, 0, ARENA)])
    outcomes = wait_until_stuck(writer, target)
    assert outcomes == []
    assert target.ask("sever", HOST) > 0
    target.ask("open_inbound")
    (outcome,) = wait_for(writer.poll, what="the end of the write")
    assert outcome.error is not None
    wait_for(lambda: target.ask("num_unread") == 0, what="all that had come is read")
    assert target.ask("read", ARENA - MIB, MIB) == bytes(MIB), "the rest never came"

    other = TargetProcess("nixl", "other-0", ARENA)
    other.ask("fill", 7)
    assert other.ask("write", target.metadata, [Run(0, ARENA - MIB, MIB)]) is None
    assert target.ask("read", ARENA - MIB, MIB) == bytes([7]) * MIB
    assert other.exit() == 0


def wait_until_stuck(writer: TransferBackend, target: TargetProcess) -> list[object]:
    """Until the target's sockets are full, and so the writer's; what ended meanwhile."""
    outcomes: list[object] = []
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5 or last <= 0:
        outcomes += writer.poll()
        now = target.ask("num_unread")
        if now != last:
            last, since = now, time.monotonic()
    return outcomes


@pytest.mark.parametrize(("host", "is_severed"), [(LOST, True), (HOST, False)])
def test_a_decode_engine_severs_the_host_of_a_dead_engine_if_nobody_else_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, is_severed: bool
) -> None:
    caplog.set_level(logging.INFO, "engine.host")
    model_dir = make_tiny_model(tmp_path)
    with EngineCluster(model_dir, num_prefill=1, prefill={"bind_host": host}) as cluster:
        d0 = cluster.engines["d0"]
        cluster.engines["p0"].stop()
        wait_for(lambda: d0.num_known_workers == 1, what="the goodbye")
        cluster.start_engine(Role.PREFILL, 1)  # heard after it
        wait_for(lambda: d0.num_known_workers == 2, what="another engine")
        said = lambda: "connections with the host of p0" in caplog.text  # noqa: E731
        wait_for(lambda: said() or not is_severed, what="its host is severed")
    assert said() == is_severed


def test_a_cluster_whose_connections_are_all_cut_serves_on(tmp_path: Path, tcp: None) -> None:
    model_dir = make_tiny_model(tmp_path)
    body = {"model": MODEL_NAME, "prompt": [*range(10, 40)], "max_tokens": 12, "temperature": 0}
    with (
        EngineCluster(model_dir, transfer="nixl", prefix_caching=False) as cluster,
        HttpBalancer(cluster.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):

        def text() -> str | None:
            answer = httpx.post(f"{balancer.url}/v1/completions", json=body, timeout=60)
            return answer.json()["choices"][0]["text"] if answer.is_success else None

        balancer.wait_ready()
        expected = wait_for(text, what="an answer")
        assert sever(HOST) > 0  # of engines, balancer and bootstrap service, which are all here
        assert wait_for(text, what="an answer over new connections") == expected
        cluster.wait_idle()

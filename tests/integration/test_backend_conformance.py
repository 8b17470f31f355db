"""One suite for every transport: the writer here, each target in a real process of its own.

A library that is missing fails these tests; it does not skip them.
"""

import hashlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bootstrap.errors import ConfigError, TransferError
from kv_transfer.backends.port import TransferBackend, WriteId
from kv_transfer.backends.registry import make_backend
from kv_transfer.layout import Run, merge_runs
from tests.support.transfer_process import HOST, TargetProcess
from tests.support.waiting import wait_for

MIB = 1 << 20
ARENA = 64 * MIB
PAGE = 16 * 1024
DEADLINE_S = 60.0

KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "nixl": ("nixl", {}),
    "nixl-tcp": ("nixl", {"UCX_TLS": "tcp"}),
    "mooncake": ("mooncake", {}),
    "fake": ("fake", {}),
}


class Writer:
    """The near end: a backend, its memory, and what ended."""

    def __init__(self, backend_name: str) -> None:
        self.backend_name = backend_name
        self.backend: TransferBackend = make_backend(backend_name, "writer-0", HOST)
        self.view = self.backend.allocate(ARENA)
        random_words = np.random.default_rng(0).integers(0, 2**63, ARENA // 8, dtype=np.int64)
        np.frombuffer(self.view, dtype=np.int64)[:] = random_words
        self.ended: dict[WriteId, list[str | None]] = {}
        self._num_targets = 0

    def new_target(self, num_bytes: int = ARENA, worker_id: str = "target") -> TargetProcess:
        """A fresh target that this writer knows."""
        self._num_targets += 1
        name = f"{worker_id}-{self._num_targets}"
        target = TargetProcess(self.backend_name, name, num_bytes)
        self.backend.add_peer(target.metadata)
        return target

    def poll(self) -> None:
        """Collect outcomes."""
        for outcome in self.backend.poll():
            self.ended.setdefault(outcome.write_id, []).append(outcome.error)

    def finish(self, write_id: WriteId) -> str | None:
        """Poll until the write ended, and some more; its only outcome's error."""
        deadline = time.monotonic() + DEADLINE_S
        while write_id not in self.ended:
            assert time.monotonic() < deadline, "the write does not end"
            self.poll()
            time.sleep(1e-4)
        for _ in range(5):
            self.poll()
        (error,) = self.ended[write_id]
        return error

    def write(self, target: TargetProcess, runs: Sequence[Run]) -> str | None:
        """Write and wait; the error, also of a write that was refused at once."""
        try:
            return self.finish(self.backend.write(target.name, runs))
        except TransferError as error:
            return str(error)

    def digest(self, offset: int, num_bytes: int) -> str:
        """Hash of bytes of the arena."""
        return hashlib.blake2b(self.view[offset : offset + num_bytes]).hexdigest()


@pytest.fixture(scope="module", params=list(KINDS))
def writer(request: pytest.FixtureRequest) -> Iterator[Writer]:
    name, environment = KINDS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        writer = Writer(name)
        yield writer
        writer.backend.close()


@pytest.fixture(scope="module")
def targets(writer: Writer) -> Iterator[list[TargetProcess]]:
    """Two that live through the module's tests, and must exit with status 0."""
    pair = [writer.new_target(), writer.new_target()]
    yield pair
    assert [target.exit() for target in pair] == [0, 0]


@pytest.fixture
def target(targets: list[TargetProcess]) -> TargetProcess:
    targets[0].ask("fill", 0)
    return targets[0]


def test_single_block_lands_and_nothing_around_it(writer: Writer, target: TargetProcess) -> None:
    assert writer.write(target, [Run(3 * PAGE, 7 * PAGE, PAGE)]) is None
    assert target.ask("digest", 7 * PAGE, PAGE) == writer.digest(3 * PAGE, PAGE)
    assert target.ask("read", 7 * PAGE - 8, 8) == bytes(8)
    assert target.ask("read", 8 * PAGE, 8) == bytes(8)


def test_scattered_runs(writer: Writer, target: TargetProcess) -> None:
    pages = list(range(256))
    random.Random(1).shuffle(pages)
    pairs = [(local, 2 * remote) for local, remote in enumerate(pages)]
    runs = merge_runs(pairs, PAGE)
    assert len(runs) == len(pairs)
    assert writer.write(target, runs) is None
    for local, remote in pairs[::17]:
        assert target.ask("digest", remote * PAGE, PAGE) == writer.digest(local * PAGE, PAGE)
        assert target.ask("read", (remote + 1) * PAGE, 4) == bytes(4)


def test_merged_runs(writer: Writer, target: TargetProcess) -> None:
    pairs = [*((page, page + 10) for page in range(40)), *((page, page) for page in range(60, 80))]
    runs = merge_runs(pairs, PAGE)
    assert [run.num_bytes for run in runs] == [40 * PAGE, 20 * PAGE]
    assert writer.write(target, runs) is None
    assert target.ask("digest", 10 * PAGE, 40 * PAGE) == writer.digest(0, 40 * PAGE)
    assert target.ask("digest", 60 * PAGE, 20 * PAGE) == writer.digest(60 * PAGE, 20 * PAGE)


def test_allocated_memory_is_what_is_sent(writer: Writer, target: TargetProcess) -> None:
    words = np.frombuffer(writer.view, dtype=np.int64)
    address = words.__array_interface__["data"][0]
    assert address % 4096 == 0
    kept = int(words[0])
    words[0] = 0x5EED
    assert writer.write(target, [Run(0, PAGE, 8)]) is None
    words[0] = kept
    assert target.ask("read", PAGE, 8) == (0x5EED).to_bytes(8, "little")


def test_64_mib(writer: Writer, target: TargetProcess) -> None:
    assert writer.write(target, [Run(0, 0, ARENA)]) is None
    assert target.ask("digest", 0, ARENA) == writer.digest(0, ARENA)


def test_out_of_bounds_is_refused(writer: Writer, target: TargetProcess) -> None:
    for runs in (
        [],
        [Run(0, 0, 0)],
        [Run(0, 0, -8)],
        [Run(-8, 0, 16)],
        [Run(0, -8, 16)],
        [Run(ARENA - 8, 0, 16)],
        [Run(0, ARENA - 8, 16)],
        [Run(0, 0, 8), Run(0, ARENA, 1)],
    ):
        with pytest.raises(TransferError):
            writer.backend.write(target.name, runs)
    assert target.ask("digest", 0, ARENA) == hashlib.blake2b(bytes(ARENA)).hexdigest()


def test_unknown_peer(writer: Writer) -> None:
    with pytest.raises(TransferError, match="nobody-1"):
        writer.backend.write("nobody-1", [Run(0, 0, 8)])
    writer.backend.remove_peer("nobody-1")


def test_peer_of_another_transport_is_refused(writer: Writer, target: TargetProcess) -> None:
    alien = msgspec.structs.replace(target.metadata, backend="carrier-pigeon", agent_name="alien")
    with pytest.raises(TransferError, match="carrier-pigeon"):
        writer.backend.add_peer(alien)
    garbled = msgspec.structs.replace(target.metadata, blob=b"\xff", agent_name="garbled")
    with pytest.raises(TransferError, match="garbled"):
        writer.backend.add_peer(garbled)


def test_two_targets(writer: Writer, targets: list[TargetProcess]) -> None:
    for target in targets:
        target.ask("fill", 0)
    ids = [
        writer.backend.write(target.name, [Run(i * PAGE, 5 * PAGE, PAGE)])
        for i, target in enumerate(targets)
    ]
    assert [writer.finish(write_id) for write_id in ids] == [None, None]
    for i, target in enumerate(targets):
        assert target.ask("digest", 5 * PAGE, PAGE) == writer.digest(i * PAGE, PAGE)


def test_two_writers_to_one_target(writer: Writer, targets: list[TargetProcess]) -> None:
    target, other_writer = targets
    target.ask("fill", 0)
    other_writer.ask("fill", 9)
    half = ARENA // 2
    theirs = [Run(page * PAGE, half + page * PAGE, PAGE) for page in range(0, 512, 2)]
    other_writer.begin("write", target.metadata, theirs)
    ours = [Run(page * PAGE, page * PAGE, PAGE) for page in range(0, 512, 2)]
    assert writer.write(target, ours) is None
    assert other_writer.finish() is None
    for page in (0, 128, 510):
        assert target.ask("digest", page * PAGE, PAGE) == writer.digest(page * PAGE, PAGE)
        assert target.ask("read", half + page * PAGE, PAGE) == bytes([9]) * PAGE
        assert target.ask("read", half + (page + 1) * PAGE, PAGE) == bytes(PAGE)


def test_every_outcome_comes_once(writer: Writer, target: TargetProcess) -> None:
    ids = [writer.backend.write(target.name, [Run(i * PAGE, i * PAGE, PAGE)]) for i in range(64)]
    assert len(set(ids)) == 64
    assert [writer.finish(write_id) for write_id in ids] == [None] * 64
    assert target.ask("digest", 0, 64 * PAGE) == writer.digest(0, 64 * PAGE)


def test_removed_peer_takes_no_writes_until_it_is_back(
    writer: Writer, target: TargetProcess
) -> None:
    write_id = writer.backend.write(target.name, [Run(0, 0, 8 * MIB)])
    writer.backend.remove_peer(target.name)
    writer.finish(write_id)  # either way, but once
    with pytest.raises(TransferError):
        writer.backend.write(target.name, [Run(0, 0, 8)])
    target.ask("fill", 0)
    writer.backend.add_peer(target.metadata)
    writer.backend.add_peer(target.metadata)
    assert writer.write(target, [Run(PAGE, 2 * PAGE, PAGE)]) is None
    assert target.ask("digest", 2 * PAGE, PAGE) == writer.digest(PAGE, PAGE)


def test_a_connection_that_was_reset_is_made_anew(writer: Writer, target: TargetProcess) -> None:
    assert writer.write(target, [Run(0, 0, PAGE)]) is None
    target.ask("sever", HOST)
    target.ask("fill", 0)
    # One or the other write notices the reset, and fails.
    runs = [Run(PAGE, 2 * PAGE, PAGE)]
    wait_for(lambda: [writer.write(target, runs) for _ in range(9)] == [None] * 9, what="good ones")
    assert target.ask("digest", 2 * PAGE, PAGE) == writer.digest(PAGE, PAGE)


def test_peer_killed_before_a_write(writer: Writer, target: TargetProcess) -> None:
    met, unmet = writer.new_target(), writer.new_target()
    assert writer.write(met, [Run(0, 0, PAGE)]) is None
    for victim in (met, unmet):
        victim.kill()
        for size in (8, ARENA):
            assert writer.write(victim, [Run(0, 0, size)]) is not None
        writer.backend.remove_peer(victim.name)
    assert writer.write(target, [Run(0, 0, PAGE)]) is None


def test_peer_killed_during_writes(writer: Writer, target: TargetProcess) -> None:
    victim = writer.new_target()
    assert writer.write(victim, [Run(0, 0, PAGE)]) is None
    killer = threading.Timer(0.05, victim.kill)
    killer.start()
    deadline = time.monotonic() + DEADLINE_S
    while writer.write(victim, [Run(0, 0, ARENA)]) is None:
        assert time.monotonic() < deadline
    killer.join()
    writer.backend.remove_peer(victim.name)
    assert writer.write(target, [Run(0, 0, PAGE)]) is None


def test_stopped_peer_that_dies(writer: Writer, target: TargetProcess) -> None:
    victim = writer.new_target()
    assert writer.write(victim, [Run(0, 0, PAGE)]) is None
    victim.signal(signal.SIGSTOP)
    ids = [writer.backend.write(victim.name, [Run(0, 0, ARENA)]) for _ in range(2)]
    writer.poll()
    victim.kill()
    for write_id in ids:
        writer.finish(write_id)
    assert writer.write(victim, [Run(0, 0, 8)]) is not None
    assert writer.write(target, [Run(0, 0, PAGE)]) is None


def test_peer_stopped_and_removed(writer: Writer, target: TargetProcess) -> None:
    frozen = writer.new_target()
    assert writer.write(frozen, [Run(0, 0, PAGE)]) is None
    frozen.signal(signal.SIGSTOP)
    write_id = writer.backend.write(frozen.name, [Run(0, 0, ARENA)])
    writer.poll()
    writer.backend.remove_peer(frozen.name)
    writer.finish(write_id)
    frozen.kill()
    assert writer.write(target, [Run(0, 0, PAGE)]) is None


def test_transport_is_what_it_says(writer: Writer) -> None:
    """Only shared memory reaches a connected peer that stands still."""
    frozen = writer.new_target()
    assert writer.write(frozen, [Run(0, 0, PAGE)]) is None
    frozen.signal(signal.SIGSTOP)
    transports = set(writer.backend.transport.split("+"))
    assert len(transports) == 1
    shares_memory = transports <= {"shm", "memfd"}
    write_id = writer.backend.write(frozen.name, [Run(0, 0, ARENA)])
    give_up_at = time.monotonic() + (DEADLINE_S if shares_memory else 0.3)
    while write_id not in writer.ended and time.monotonic() < give_up_at:
        writer.poll()
        time.sleep(1e-3)
    reached = writer.ended.get(write_id) == [None]
    frozen.kill()
    writer.finish(write_id)
    writer.backend.remove_peer(frozen.name)
    assert reached == shares_memory


def test_restarted_worker_has_a_new_agent_name(writer: Writer) -> None:
    old = writer.new_target(worker_id="phoenix")
    assert writer.write(old, [Run(0, 0, PAGE)]) is None
    old.kill()
    new = writer.new_target(worker_id="phoenix")
    assert new.name != old.name
    assert writer.write(new, [Run(0, PAGE, PAGE)]) is None
    assert new.ask("digest", PAGE, PAGE) == writer.digest(0, PAGE)
    assert writer.write(old, [Run(0, 0, PAGE)]) is not None
    writer.backend.remove_peer(old.name)
    assert new.exit() == 0


def test_idle_uses_no_cpu(writer: Writer, targets: list[TargetProcess]) -> None:
    idle = targets[1]
    idle.ask("close_inbound")
    began_at, before_here, before_there = time.monotonic(), time.process_time(), idle.ask("cpu_s")
    threading.Event().wait(0.5)  # the window that is measured; a busy machine makes it longer
    used_here, used_there = time.process_time() - before_here, idle.ask("cpu_s") - before_there
    assert max(used_here, used_there) < 0.1 * (time.monotonic() - began_at)


def _open_and_close(conn: Connection, backend_name: str) -> None:
    """Send (threads, files) after one life of a backend and after three."""

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    left = []
    for life in range(3):
        backend = make_backend(backend_name, f"again-{life}", HOST)
        backend.allocate(MIB)
        backend.metadata()
        backend.close()
        backend.close()
        left.append(held())
    # A thread that was joined may be listed for a moment longer.
    give_up_at = time.monotonic() + DEADLINE_S
    while any(now > then for now, then in zip(held(), left[0], strict=True)):
        if time.monotonic() > give_up_at:
            break
        time.sleep(0.01)
    conn.send((left[0], held()))


def test_close_leaves_nothing_behind(writer: Writer) -> None:
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    before = {str(path) for path in Path("/dev/shm").iterdir()}
    process = spawn.Process(target=_open_and_close, args=(far, writer.backend_name))
    process.start()
    assert near.poll(90)
    first, last = near.recv()
    process.join(60)
    assert process.exitcode == 0
    assert all(now <= then for now, then in zip(last, first, strict=True)), (first, last)
    assert not [p for p in Path("/dev/shm").glob("ucx_*") if str(p) not in before]


def test_mooncake_refuses_the_protocol_that_tears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_TCP_PROTO", "1")
    with pytest.raises(ConfigError, match="MC_TCP_PROTO"):
        make_backend("mooncake", "torn-0", HOST)

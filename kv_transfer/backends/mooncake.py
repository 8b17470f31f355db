"""Mooncake's transfer engine, over TCP or, where there is hardware for it, RDMA.

The engine's own threads move the bytes, so neither side has to help. What it does not do, this file
does: bound every run, keep few pieces in flight so that a write can be stopped between two of them,
and never reuse what it remembers of an address for the process that lives there next.

Each piece is a transfer of its own: the status call for batches blocks, and the one for single
transfers looks at a batch's first piece only and frees the batch, so a batch would seem complete when
its first piece is (transfer_engine_py.cpp, `transferCheckStatus`).
"""

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata as distributions
from itertools import count
from typing import Any

from bootstrap.errors import ConfigError, TransferError
from bootstrap.membership import TransferMetadata
from kv_transfer.backends.arena import Arena, check_runs
from kv_transfer.backends.port import WriteId, WriteOutcome
from kv_transfer.backends.process import ProcessTag, is_gone, pack_blob, unpack_blob
from kv_transfer.layout import Run

MIN_VERSION = (
    0,
    3,
    12,
)  # earlier ones call a write complete before the target applied it (PR 2850)
PIECE_BYTES = 16 << 20
MAX_IN_FLIGHT = 8  # pieces per peer; the engine has 4 connections to each and refuses over 1024

_DISTRIBUTIONS = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
)
_DEFAULTS = {
    "GLOG_minloglevel": "1",
    "MC_LOG_LEVEL": "WARNING",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "5",  # a peer that takes nothing for so long is lost
    "MC_TCP_STATUS_TIMEOUT_SEC": "5",
}
_NO_BATCH = (0, (1 << 64) - 1)
_PENDING, _DONE = 0, 1  # transfer_check_status; negative: failed


@dataclass(frozen=True, slots=True)
class _Peer:
    session: str
    base_address: int
    num_bytes: int
    process: ProcessTag


@dataclass(frozen=True, slots=True)
class _Piece:
    local: int
    remote: int
    num_bytes: int


@dataclass(slots=True)
class _Write:
    """Ends when `waiting` and `in_flight` are empty; after `error` is set nothing more starts."""

    agent_name: str
    peer: _Peer
    waiting: deque[_Piece]
    in_flight: list[int] = field(default_factory=list)
    error: str | None = None

    def fail(self, error: str) -> None:
        self.error = self.error or error
        self.waiting.clear()


class MooncakeBackend:
    """See `TransferBackend`. A write ends only when the engine has answered for all of its pieces."""

    name = "mooncake"
    needs_target_progress = False

    def __init__(self, agent_name: str, host: str, protocol: str = "tcp") -> None:
        if os.environ.get("MC_TCP_PROTO") == "1":
            raise ConfigError(
                "MC_TCP_PROTO='1': writes would be called complete before they are; unset it"
            )
        for key, value in _DEFAULTS.items():
            os.environ.setdefault(key, value)
        from mooncake.engine import TransferEngine

        _check_version()
        self._engine: Any = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, "") != 0:
            raise ConfigError(f"transfer='mooncake': cannot start on {host!r} by {protocol!r}")
        self.transport = protocol
        self._agent_name = agent_name
        self._session = f"{host}:{self._engine.get_rpc_port()}"
        self._arena: Arena | None = None
        self._peers: dict[str, _Peer] = {}
        self._sessions_used: Counter[str] = Counter()
        self._ids = count()
        self._writes: dict[WriteId, _Write] = {}

    def allocate(self, num_bytes: int) -> memoryview:
        """See the port."""
        self._arena = Arena(num_bytes)
        if self._engine.register_memory(self._arena.address, num_bytes) != 0:
            raise TransferError(f"{num_bytes} bytes cannot be registered")
        return self._arena.view

    def metadata(self) -> TransferMetadata:
        """See the port."""
        arena = self._own_arena()
        return TransferMetadata(
            backend=self.name,
            transport=self.transport,
            agent_name=self._agent_name,
            base_address=arena.address,
            num_bytes=arena.num_bytes,
            blob=pack_blob(self._session.encode()),
        )

    def add_peer(self, metadata: TransferMetadata) -> None:
        """See the port. Connects, and raises TransferError when nobody answers."""
        name = metadata.agent_name
        if name in self._peers:
            return
        blob = unpack_blob(metadata, self.name)
        if is_gone(blob.process):
            raise TransferError(f"peer {name}: its process is gone")
        session = blob.connection.decode(errors="replace")
        if self._engine.send_probe(session) != 0:
            raise TransferError(f"peer {name}: nobody answers at {session}")
        self._peers[name] = _Peer(
            self._fresh_alias(session), metadata.base_address, metadata.num_bytes, blob.process
        )

    def remove_peer(self, agent_name: str) -> None:
        """See the port. Pieces in flight cannot be called back: their writes end when they do."""
        if self._peers.pop(agent_name, None) is None:
            return
        for write in self._writes.values():
            if write.agent_name == agent_name:
                write.fail("peer was removed")

    def write(self, agent_name: str, runs: Sequence[Run]) -> WriteId:
        """See the port."""
        peer = self._peers.get(agent_name)
        if peer is None:
            raise TransferError(f"unknown peer {agent_name}")
        arena = self._own_arena()
        check_runs(runs, arena.num_bytes, peer.num_bytes)
        if is_gone(peer.process):  # its port may already be another process's
            raise TransferError(f"peer {agent_name}: its process is gone")
        pieces = deque(_pieces(runs, arena.address, peer.base_address))
        write_id = next(self._ids)
        self._writes[write_id] = _Write(agent_name, peer, pieces)
        self._start_pieces()
        return write_id

    def poll(self) -> list[WriteOutcome]:
        """See the port."""
        for write in self._writes.values():
            self._check_pieces(write)
        self._start_pieces()
        ended = [i for i, w in self._writes.items() if not w.in_flight and not w.waiting]
        return [WriteOutcome(i, self._writes.pop(i).error) for i in ended]

    def progress(self) -> None:
        """Nothing to do: the engine's threads receive."""

    def close(self) -> None:
        """See the port. Takes up to about a second: the engine waits for its threads."""
        if self._engine is None:
            return
        self._peers.clear()
        self._writes.clear()
        if self._arena is not None:
            self._engine.unregister_memory(self._arena.address)
        self._engine = None  # the last reference stops its threads and closes its sockets

    def _own_arena(self) -> Arena:
        if self._arena is None:
            raise TransferError("allocate comes first")
        return self._arena

    def _fresh_alias(self, session: str) -> str:
        """A spelling of `session` that the engine has not met.

        The engine remembers memory and ports by this text for as long as it lives, and a restarted
        peer may get the port of a dead one. Leading zeros in the port make it new.
        """
        host, _, port = session.rpartition(":")
        times = self._sessions_used[session]
        self._sessions_used[session] += 1
        return f"{host}:{'0' * times}{port}"

    def _start_pieces(self) -> None:
        """Hand waiting pieces to the engine, oldest write first, a few per peer."""
        in_flight = Counter[str]()
        for write in self._writes.values():
            in_flight[write.agent_name] += len(write.in_flight)
        for write in self._writes.values():
            while write.waiting and in_flight[write.agent_name] < MAX_IN_FLIGHT:
                piece = write.waiting.popleft()
                batch = self._engine.transfer_submit_write(
                    write.peer.session, piece.local, piece.remote, piece.num_bytes
                )
                if batch in _NO_BATCH:
                    write.fail("the transport refused the write")
                    break
                write.in_flight.append(batch)
                in_flight[write.agent_name] += 1

    def _check_pieces(self, write: _Write) -> None:
        still: list[int] = []
        for batch in write.in_flight:
            status = self._engine.transfer_check_status(batch)
            if status == _PENDING:
                still.append(batch)
            elif status != _DONE:
                write.fail("the transport lost the write")
        write.in_flight = still


def _pieces(runs: Sequence[Run], local_base: int, remote_base: int) -> Iterator[_Piece]:
    for run in runs:
        for at in range(0, run.num_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, run.num_bytes - at)
            yield _Piece(
                local_base + run.local_offset + at, remote_base + run.remote_offset + at, size
            )


def _check_version() -> None:
    for name in _DISTRIBUTIONS:
        try:
            version = distributions.version(name)
        except distributions.PackageNotFoundError:
            continue
        numbers = tuple(int(n) for n in version.split(".")[:3] if n.isdigit())
        if numbers < MIN_VERSION:
            wanted = ".".join(map(str, MIN_VERSION))
            raise ConfigError(f"{name}=={version}: pdserve needs {wanted} or later")

"""NIXL over UCX: shared memory within a host, TCP or RDMA between hosts.

NIXL's progress thread stays off, since it spins a whole core; `poll` and `progress` move the bytes
instead. A target must call `progress` while peers may write: a first contact always needs its answer,
and TCP needs it for every byte. Over shared memory a connected writer needs nobody.
"""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bootstrap.errors import ConfigError, TransferError
from bootstrap.membership import TransferMetadata
from kv_transfer.backends import ucx
from kv_transfer.backends.arena import Arena, check_runs
from kv_transfer.backends.port import WriteId, WriteOutcome
from kv_transfer.backends.process import ProcessTag, is_gone, pack_blob, unpack_blob
from kv_transfer.layout import Run

logger = logging.getLogger(__name__)

_UCX = "UCX"


@dataclass(frozen=True, slots=True)
class _Peer:
    metadata: TransferMetadata
    process: ProcessTag
    transport: str


@dataclass(frozen=True, slots=True)
class _Write:
    agent_name: str
    handle: Any


class NixlBackend:
    """See `TransferBackend`. A write's handle is released before its outcome is reported."""

    name = "nixl"
    needs_target_progress = True

    def __init__(self, agent_name: str, host: str) -> None:
        ucx.set_defaults(host)
        from nixl import _api, _bindings  # reads NIXL_LOG_LEVEL, so not before the defaults are set

        kinds = [kind for kind in vars(_bindings).values() if isinstance(kind, type)]
        self._errors: tuple[type[Exception], ...] = (
            RuntimeError,  # what the Python side of NIXL raises
            *(kind for kind in kinds if issubclass(kind, Exception)),
        )
        config = _api.nixl_agent_config(enable_prog_thread=False, backends=[_UCX])
        try:
            self._agent: Any = _api.nixl_agent(agent_name, config)
        except self._errors as error:
            raise ConfigError(f"transfer='nixl': cannot start: {error!r}") from error
        if _UCX not in self._agent.backends:
            raise ConfigError("transfer='nixl': this installation has no UCX plugin")
        self._agent_name = agent_name
        self._arena: Arena | None = None
        self._registration: Any = None
        self._peers: dict[str, _Peer] = {}
        self._broken: set[str] = set()  # peers whose connection failed a write
        self._ids = count()
        self._writes: dict[WriteId, _Write] = {}
        self._ended: list[WriteOutcome] = []

    @property
    def transport(self) -> str:
        """What connected peers are reached by; before any, what a peer on this host would be."""
        used = {peer.transport for peer in self._peers.values()}
        return "+".join(sorted(used)) or ("shm" if ucx.allows_shared_memory() else _by_network())

    def allocate(self, num_bytes: int) -> memoryview:
        """See the port."""
        self._arena = Arena(num_bytes)
        region = [(self._arena.address, num_bytes, 0, "")]
        try:
            self._registration = self._agent.register_memory(region, "DRAM", backends=[_UCX])
        except self._errors as error:
            raise TransferError(f"{num_bytes} bytes cannot be registered: {error}") from error
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
            blob=pack_blob(self._agent.get_agent_metadata()),
        )

    def add_peer(self, metadata: TransferMetadata) -> None:
        """See the port. Sends nothing: the connection is made by the first write."""
        if metadata.agent_name not in self._peers:
            self._connect(metadata)

    def _connect(self, metadata: TransferMetadata) -> None:
        name = metadata.agent_name
        blob = unpack_blob(metadata, self.name)
        if is_gone(blob.process):
            raise TransferError(f"peer {name}: its process is gone")
        try:
            loaded = self._agent.add_remote_agent(blob.connection)
        except self._errors as error:
            raise TransferError(f"peer {name}: {error}") from error
        if loaded.decode() != name:
            self._disconnect(loaded.decode())
            raise TransferError(f"peer {name} calls itself {loaded.decode()}")
        direct = ucx.may_write_directly(blob.process, metadata.base_address)
        transport = "shm" if direct and ucx.allows_shared_memory() else _by_network()
        self._peers[name] = _Peer(metadata, blob.process, transport)

    def remove_peer(self, agent_name: str) -> None:
        """See the port. Over TCP, bytes that the kernel already holds can still arrive."""
        if self._peers.pop(agent_name, None) is not None:
            self._drop(agent_name, "peer was removed")
            self._broken.discard(agent_name)

    def write(self, agent_name: str, runs: Sequence[Run]) -> WriteId:
        """See the port. Over shared memory the bytes are copied here and now, by the kernel."""
        peer = self._peers.get(agent_name)
        if peer is None:
            raise TransferError(f"unknown peer {agent_name}")
        if agent_name in self._broken:
            self._connect_again(peer)
        arena = self._own_arena()
        check_runs(runs, arena.num_bytes, peer.metadata.num_bytes)
        if is_gone(peer.process):  # its pid may already name another process
            raise TransferError(f"peer {agent_name}: its process is gone")
        local = _regions(arena.address, [(run.local_offset, run.num_bytes) for run in runs])
        base = peer.metadata.base_address
        remote = _regions(base, [(run.remote_offset, run.num_bytes) for run in runs])
        agent = self._agent
        try:
            handle = agent.initialize_xfer(
                "WRITE",
                agent.get_xfer_descs(local, "DRAM"),
                agent.get_xfer_descs(remote, "DRAM"),
                agent_name,
                b"",
                [_UCX],
            )
            state = agent.transfer(handle)
        except self._errors as error:
            self._broken.add(agent_name)
            raise TransferError(f"peer {agent_name}: {error}") from error
        write_id = next(self._ids)
        self._writes[write_id] = _Write(agent_name, handle)
        if state != "PROC":
            self._end(write_id, None if state == "DONE" else "the transport lost the write")
        return write_id

    def poll(self) -> list[WriteOutcome]:
        """See the port."""
        for write_id, write in list(self._writes.items()):
            try:
                state = self._agent.check_xfer_state(write.handle)
            except self._errors as error:
                self._end(write_id, str(error))
                continue
            if state != "PROC":
                self._end(write_id, None if state == "DONE" else "the transport lost the write")
        ended, self._ended = self._ended, []
        return ended

    def progress(self) -> None:
        """See the port."""
        self._agent.get_new_notifs(backends=[_UCX])

    def close(self) -> None:
        """See the port."""
        if self._agent is None:
            return
        for agent_name in list(self._peers):
            self.remove_peer(agent_name)
        if self._registration is not None:
            with contextlib.suppress(*self._errors):
                self._agent.deregister_memory(self._registration)
        self._registration = self._agent = None  # the last reference closes sockets and threads

    def _own_arena(self) -> Arena:
        if self._arena is None:
            raise TransferError("allocate comes first")
        return self._arena

    def _end(self, write_id: WriteId, error: str | None) -> None:
        write = self._writes.pop(write_id)
        if error is not None:
            self._broken.add(write.agent_name)
        try:
            write.handle.release()
        except self._errors as failure:
            logger.warning("write to %s was not released: %s", write.agent_name, failure)
        self._ended.append(WriteOutcome(write_id, error))

    def _connect_again(self, peer: _Peer) -> None:
        """NIXL lets every write fail over a connection that was reset once, for ever.

        What is still under way over the old one ends with an error. Raises TransferError; the next write
        tries again.
        """
        self._drop(peer.metadata.agent_name, "its connection broke")
        self._connect(peer.metadata)
        self._broken.discard(peer.metadata.agent_name)

    def _drop(self, agent_name: str, why: str) -> None:
        self._disconnect(agent_name)
        for write_id, write in list(self._writes.items()):
            if write.agent_name == agent_name:
                self._end(write_id, why)

    def _disconnect(self, agent_name: str) -> None:
        try:
            self._agent.remove_remote_agent(agent_name)
        except self._errors as error:  # NIXL forgot the peer when its connection broke
            logger.debug("peer %s: %s", agent_name, error)


def _by_network() -> str:
    return "rdma" if ucx.has_rdma() else "tcp"


def _regions(base: int, pieces: list[tuple[int, int]]) -> NDArray[np.uint64]:
    """NIXL's descriptor rows (address, length, device)."""
    return np.array([(base + offset, size, 0) for offset, size in pieces], dtype=np.uint64)

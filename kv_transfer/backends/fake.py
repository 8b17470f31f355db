"""A real transport without a library: peers on one host map each other's memory and copy.

An arena is an unnamed memfd; a peer opens it through `/proc/<pid>/fd/<fd>`, so nothing outlives the
process. Writes land in `poll`, never in `write`, as on an asynchronous transport. A `FaultPlan` makes
it misbehave on purpose; without one it is faithful.

The first page of the memfd is a header: magic, one byte that says the owner closed, agent name.
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

from bootstrap.errors import TransferError
from bootstrap.membership import TransferMetadata
from kv_transfer.backends.arena import check_runs
from kv_transfer.backends.faults import (
    Corrupt,
    Delay,
    Drop,
    FaultPlan,
    Hold,
    Reorder,
    Repeat,
    Truncate,
)
from kv_transfer.backends.port import WriteId, WriteOutcome
from kv_transfer.backends.process import ProcessTag, is_gone, is_local, pack_blob, unpack_blob
from kv_transfer.layout import Run

_HEADER_BYTES = 4096
_MAGIC = b"pdsfake1"
_CLOSED_AT = len(_MAGIC)
_NAME_AT = _CLOSED_AT + 1


@dataclass(slots=True)
class _Peer:
    """Another arena, mapped; `num_bytes` excludes the header."""

    mapping: mmap.mmap
    num_bytes: int
    process: ProcessTag

    def store(self, offset: int, data: bytes | memoryview) -> None:
        start = _HEADER_BYTES + offset
        self.mapping[start : start + len(data)] = data

    @property
    def unusable(self) -> str | None:
        if self.mapping[_CLOSED_AT]:
            return "peer closed its end"
        return "peer's process is gone" if is_gone(self.process) else None


@dataclass(slots=True)
class _Write:
    """A write that has not landed; `polls_left` polls must pass first."""

    index: int
    agent_name: str
    runs: tuple[Run, ...]
    polls_left: int


@dataclass(slots=True)
class _Echo:
    """Bytes that land a second time when `polls_left` is used up."""

    agent_name: str
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    polls_left: int = 0


class FakeBackend:
    """See `TransferBackend`; write ids are the writes' indices in the plan."""

    name = "fake"
    transport = "memfd"
    needs_target_progress = False

    def __init__(self, agent_name: str, plan: FaultPlan | None = None) -> None:
        self._agent_name = agent_name
        self._plan = plan or FaultPlan()
        self._fd = -1
        self._memory: mmap.mmap | None = None
        self._view = memoryview(b"")
        self._peers: dict[str, _Peer] = {}
        self._indices = count()
        self._writes: dict[WriteId, _Write] = {}
        self._echoes: list[_Echo] = []
        self._released: set[int] = set()
        self._ended: list[WriteOutcome] = []
        self._last_landed = -1

    def allocate(self, num_bytes: int) -> memoryview:
        """See the port."""
        self._fd = os.memfd_create("pdserve-arena", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _HEADER_BYTES + num_bytes)
        self._memory = mmap.mmap(self._fd, _HEADER_BYTES + num_bytes)
        name = self._agent_name.encode()
        self._memory[:_NAME_AT] = _MAGIC + b"\0"
        self._memory[_NAME_AT : _NAME_AT + len(name) + 1] = name + b"\0"
        self._view = memoryview(self._memory)[_HEADER_BYTES:]
        return self._view

    def metadata(self) -> TransferMetadata:
        """See the port."""
        return TransferMetadata(
            backend=self.name,
            transport=self.transport,
            agent_name=self._agent_name,
            base_address=0,
            num_bytes=len(self._view),
            blob=pack_blob(msgspec.msgpack.encode(self._fd)),
        )

    def add_peer(self, metadata: TransferMetadata) -> None:
        """See the port; raises TransferError when the peer is on another host or gone."""
        if metadata.agent_name in self._peers:
            return
        blob = unpack_blob(metadata, self.name)
        if not is_local(blob.process):
            raise TransferError(f"peer {metadata.agent_name} is on another host; fake reaches none")
        try:
            fd_number = msgspec.msgpack.decode(blob.connection, type=int)
            fd = os.open(f"/proc/{blob.process.pid}/fd/{fd_number}", os.O_RDWR | os.O_CLOEXEC)
        except (msgspec.MsgspecError, OSError) as error:
            raise TransferError(f"peer {metadata.agent_name} cannot be mapped: {error}") from error
        try:
            mapping = mmap.mmap(fd, _HEADER_BYTES + metadata.num_bytes)
        except (OSError, ValueError) as error:
            raise TransferError(f"peer {metadata.agent_name} cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        header = _MAGIC + b"\0" + metadata.agent_name.encode() + b"\0"
        if mapping[: len(header)] != header:
            mapping.close()
            raise TransferError(
                f"what peer {metadata.agent_name} names is no open arena of its own"
            )
        self._peers[metadata.agent_name] = _Peer(mapping, metadata.num_bytes, blob.process)

    def remove_peer(self, agent_name: str) -> None:
        """See the port."""
        peer = self._peers.pop(agent_name, None)
        if peer is None:
            return
        peer.mapping.close()
        self._echoes = [echo for echo in self._echoes if echo.agent_name != agent_name]
        for write_id, write in list(self._writes.items()):
            if write.agent_name == agent_name:
                self._end(write_id, "peer was removed")

    def write(self, agent_name: str, runs: Sequence[Run]) -> WriteId:
        """See the port."""
        peer = self._peers.get(agent_name)
        if peer is None:
            raise TransferError(f"unknown peer {agent_name}")
        check_runs(runs, len(self._view), peer.num_bytes)
        index = next(self._indices)
        fault = self._plan.at(index)
        polls = fault.num_polls if isinstance(fault, Delay) else 0
        self._writes[index] = _Write(index, agent_name, tuple(runs), polls)
        return index

    def release(self, index: int) -> None:
        """Let held write `index` land at the next poll; any thread may call it."""
        self._released.add(index)

    def poll(self) -> list[WriteOutcome]:
        """See the port."""
        self._land_echoes()
        for write_id, write in list(self._writes.items()):
            if self._is_due(write):
                self._end(write_id, self._land(write))
        ended, self._ended = self._ended, []
        return ended

    def progress(self) -> None:
        """Nothing to do: the writer copies."""

    def close(self) -> None:
        """See the port. Writes that have not landed never will."""
        for agent_name in list(self._peers):
            self.remove_peer(agent_name)
        if self._memory is not None:
            self._memory[_CLOSED_AT] = 1
            self._memory = None  # unmapped with the last view of it
            os.close(self._fd)

    def _is_due(self, write: _Write) -> bool:
        fault = self._plan.at(write.index)
        if isinstance(fault, Drop):
            return False
        if isinstance(fault, Hold):
            return write.index in self._released
        if isinstance(fault, Reorder):
            return self._last_landed > write.index
        write.polls_left -= 1
        return write.polls_left < 0

    def _end(self, write_id: WriteId, error: str | None) -> None:
        del self._writes[write_id]
        self._ended.append(WriteOutcome(write_id, error))

    def _land(self, write: _Write) -> str | None:
        """Copy the bytes as the plan says; the outcome's error."""
        peer = self._peers[write.agent_name]
        if peer.unusable:
            return peer.unusable
        fault = self._plan.at(write.index)
        budget = fault.num_bytes if isinstance(fault, Truncate) else None
        echo = _Echo(write.agent_name)
        done = 0
        for run in write.runs:
            size = run.num_bytes if budget is None else min(run.num_bytes, budget - done)
            data = self._view[run.local_offset : run.local_offset + size]
            peer.store(run.remote_offset, data)
            if isinstance(fault, Corrupt) and done <= fault.offset < done + size:
                at = fault.offset - done
                peer.store(run.remote_offset + at, bytes([data[at] ^ 0xFF]))
            if isinstance(fault, Repeat):
                echo.pieces.append((run.remote_offset, bytes(data)))
            done += size
        if isinstance(fault, Repeat):
            echo.polls_left = fault.num_polls
            self._echoes.append(echo)
        self._last_landed = max(self._last_landed, write.index)
        return fault.error if isinstance(fault, Truncate) else peer.unusable

    def _land_echoes(self) -> None:
        for echo in list(self._echoes):
            echo.polls_left -= 1
            if echo.polls_left <= 0:
                self._echoes.remove(echo)
                for offset, data in echo.pieces:
                    self._peers[echo.agent_name].store(offset, data)

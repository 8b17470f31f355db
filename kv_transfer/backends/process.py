"""Which process a peer is, so that one on this host is known to be dead the moment it is.

Every backend's blob is a `PeerBlob`: the process plus the backend's own connection data. This file
knows nothing of transports.
"""

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bootstrap.errors import TransferError
from bootstrap.membership import TransferMetadata

_Natural = Annotated[int, Meta(ge=0, lt=1 << 53)]


class ProcessTag(Struct, frozen=True):
    """One process. Pids are reused; with its start time a pid is not.

    `started` is in clock ticks after boot, field 22 of `/proc/<pid>/stat` (proc(5)).
    """

    boot_id: Annotated[str, Meta(max_length=64)]
    pid_namespace: _Natural
    pid: _Natural
    started: _Natural


class PeerBlob(Struct, frozen=True):
    """What `TransferMetadata.blob` holds."""

    process: ProcessTag
    connection: bytes


def this_process() -> ProcessTag:
    """The calling process."""
    started = start_time(os.getpid())
    return ProcessTag(_boot_id(), _pid_namespace(), os.getpid(), started or 0)


def is_local(tag: ProcessTag) -> bool:
    """Whether `tag` lives under this kernel and its pid means the same to us."""
    return tag.boot_id == _boot_id() and tag.pid_namespace == _pid_namespace()


def is_gone(tag: ProcessTag) -> bool:
    """Whether `tag` is known to have ended. False for every process of another host."""
    try:
        return is_local(tag) and start_time(tag.pid) != tag.started
    except OSError:  # out of file descriptors: nothing is known
        return False


def start_time(pid: int) -> int | None:
    """When `pid` started, in clock ticks after boot; None when no such process lives.

    A zombie is dead. A pid with its start time names one process for ever: the kernel reuses pids.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name may hold spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def pack_blob(connection: bytes) -> bytes:
    """This process and `connection` as a blob."""
    return msgspec.msgpack.encode(PeerBlob(this_process(), connection))


def unpack_blob(metadata: TransferMetadata, backend: str) -> PeerBlob:
    """The blob of a peer that must speak `backend`; raises TransferError."""
    if metadata.backend != backend:
        raise TransferError(
            f"peer {metadata.agent_name} transfers by {metadata.backend!r}, this worker by {backend!r}"
        )
    try:
        return msgspec.msgpack.decode(metadata.blob, type=PeerBlob)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TransferError(f"peer {metadata.agent_name}: unreadable metadata: {error}") from error


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino

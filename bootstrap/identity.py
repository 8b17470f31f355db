"""Who is who: workers, incarnations, rooms.

A worker is `(worker_id, incarnation)`. The incarnation is random at every start, so an address never
identifies anybody and a restarted worker is never taken for the one it replaces. A room is 128
random bits, minted by the load balancer once per attempt and never derived from client text.
"""

import secrets
from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

ROOM_BYTES = 16

Room = Annotated[bytes, Meta(min_length=ROOM_BYTES, max_length=ROOM_BYTES)]
WorkerId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+\Z")]
Incarnation = Annotated[str, Meta(min_length=16, max_length=16, pattern=r"^[0-9a-f]+\Z")]
Endpoint = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^tcp://[!-~]+\Z")]


class Role(Enum):
    """What a process does in the cluster."""

    PREFILL = "prefill"
    DECODE = "decode"
    BALANCER = "balancer"
    SUPERVISOR = "supervisor"
    BOOTSTRAP = "bootstrap"


class WorkerRef(Struct, frozen=True, order=True):
    """One life of one worker. Equal refs mean the same process start."""

    worker_id: WorkerId
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.worker_id}@{self.incarnation[:6]}"


class Peer(Struct, frozen=True):
    """A worker's one life and where its inbox listens."""

    ref: WorkerRef
    endpoint: Endpoint


def new_incarnation() -> str:
    """64 random bits as 16 hex digits."""
    return secrets.token_hex(8)


def new_room() -> bytes:
    """128 random bits."""
    return secrets.token_bytes(ROOM_BYTES)


def short_room(room: bytes) -> str:
    """The first 8 hex digits of a room, for logs."""
    return room[:4].hex()

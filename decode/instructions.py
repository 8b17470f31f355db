"""What the decode core asks of the threads around it, beyond posting messages."""

from dataclasses import dataclass

from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import HandoffRecord
from kv_transfer.digests import Blocks


@dataclass(frozen=True, slots=True)
class InboundOpened:
    """A peer may write these pages: keep the transport moving."""

    blocks: Blocks


@dataclass(frozen=True, slots=True)
class InboundClosed:
    """No peer may write this room's pages any more."""

    room: bytes


@dataclass(frozen=True, slots=True)
class DropSwap:
    """A retracted request ended: its kept bytes are of no use."""

    room: bytes


@dataclass(frozen=True, slots=True)
class TearDown:
    """A dead prefill engine's connection has to go; answered by `TornDown`."""

    writer: Peer
    agent_name: str


@dataclass(frozen=True, slots=True)
class TornDown:
    """Event: nothing of `ref`'s can arrive by the transport any more."""

    ref: WorkerRef


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This engine's life has to end, once its rooms have; a new one has new memory."""

    detail: str


@dataclass(frozen=True, slots=True)
class HandoffVerified:
    """Event: a record whose digests were compared with what landed; `bad_blocks` differ."""

    sender: Peer
    record: HandoffRecord
    bad_blocks: tuple[int, ...]

"""Looking into an engine: what each of its rooms holds, how far it is, and what it waits for.

A balancer asks page by page; every answer is true of one moment between two steps. See `messages` for
who sends what.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from bootstrap.commands import CommandId
from bootstrap.fields import Gauge, MessageBase, Pages, Position, RequestId, Seconds
from bootstrap.identity import ROOM_BYTES, Room, WorkerRef

MAX_REPORTED = 256  # rooms in one report
MAX_ORPHANS = 64  # rooms named as orphans in one report; their pages are all counted

_Name = Annotated[str, Meta(max_length=32)]
_PageCounts = Annotated[dict[_Name, Gauge], Meta(max_length=16)]


class Wait(Enum):
    """What has to happen before a room moves on."""

    NOTHING = "nothing"  # it is in the next step, or its end is under way
    TURN = "turn"  # others came before it
    SEQUENCES = "sequences"  # as many run as may run at once
    PAGES = "pages"  # too few are free
    GRAMMAR = "grammar"  # its grammar compiles
    PEER = "peer"  # the other engine has not registered here
    PREFILL = "prefill"  # the prefill engine has not begun
    MANIFEST = "manifest"  # the decode engine has not named its pages
    WRITES = "writes"  # writes are under way
    RECORD = "record"  # the handoff record has not come
    ACCEPTANCE = "acceptance"  # the decode engine has not accepted the record
    WRITER = "writer"  # in quarantine until the writer says that it stopped
    SETTLING = "settling"  # in quarantine for a time that is known


class AskLedger(MessageBase, frozen=True):
    """Report the rooms that follow `after` in the order of their bytes, or `room` alone."""

    command: CommandId
    after: Annotated[bytes, Meta(max_length=ROOM_BYTES)] = b""
    room: Room | None = None


class RoomProgress(Struct, frozen=True, omit_defaults=True):
    """How far a room is, as its engine counts."""

    num_prompt_tokens: Position = 0
    num_computed_tokens: Position = 0  # prompt tokens whose KV is in this engine's pages
    num_sent_blocks: Position = 0
    num_output_tokens: Position = 0


class RoomReport(Struct, frozen=True, omit_defaults=True):
    """One room. `pages` counts its pages by state: shared ones are counted in each of their rooms.

    `in_state_s` is known to a fraction of a second. `balancer` is whom the engine reports to, None for a
    room of which only the transfer is left.
    """

    room: Room
    state: _Name
    waits_for: Wait = Wait.NOTHING
    detail: Annotated[str, Meta(max_length=256)] = ""
    request_id: RequestId = ""
    attempt: Position = 0
    balancer: WorkerRef | None = None
    peer: WorkerRef | None = None
    epoch: Gauge = 0
    age_s: Seconds = 0.0
    in_state_s: Seconds = 0.0
    pages: _PageCounts = {}
    progress: RoomProgress = RoomProgress()


class Orphan(Struct, frozen=True):
    """Pages that outlived their room: held in the ledger for a room that the engine does not know."""

    room: Room
    pages: _PageCounts


class LedgerReport(MessageBase, frozen=True):
    """The pool, and a page of its rooms.

    `pages` counts every page of the pool once; its values sum to `num_pages`. `more` when rooms follow
    the last one. `page_indices` are those of the room that was asked for, in logical order.
    """

    command: CommandId
    num_pages: Gauge
    pages: _PageCounts
    num_rooms: Gauge
    rooms: Annotated[tuple[RoomReport, ...], Meta(max_length=MAX_REPORTED)] = ()
    more: bool = False
    num_orphan_pages: Gauge = 0
    orphans: Annotated[tuple[Orphan, ...], Meta(max_length=MAX_ORPHANS)] = ()
    page_indices: Pages = ()

"""What an engine tells of its rooms when a balancer asks, and the watch over pages that outlive theirs.

Pure, and the same for both roles: each role says which rooms it accounts for and how each of them is.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from bootstrap.fields import MAX_SECONDS
from bootstrap.identity import Peer
from bootstrap.inspection import (
    MAX_ORPHANS,
    MAX_REPORTED,
    AskLedger,
    LedgerReport,
    Orphan,
    RoomReport,
)
from engine.core import Post, Received
from kv_transfer.ledger import PageLedger

WATCH_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class TransferView:
    """How far a room's outgoing transfer is. `state` is the send machine's.

    `moved_at` is when a write of it last began or ended, 0 when none did.
    """

    peer: Peer
    state: str
    epoch: int
    num_writes: int
    num_in_flight: int
    num_sent_blocks: int
    moved_at: float


@dataclass(frozen=True, slots=True)
class LedgerAsked:
    """Event: `sender` asks; `transfers` are those that the core does not see itself, by room."""

    sender: Peer
    message: AskLedger
    transfers: Mapping[bytes, TransferView] = field(default_factory=dict)


class RoomSource(Protocol):
    """The rooms of one role's core."""

    def states(self) -> dict[bytes, str]:
        """Every room that may hold pages or is waited for, and the name of its state."""
        ...

    def reports(
        self, rooms: Sequence[bytes], transfers: Mapping[bytes, TransferView], now: float
    ) -> list[RoomReport]:
        """One report per room, in order, but for its pages and the time in its state.

        Each of `rooms` is in `states()` or in `transfers`.
        """
        ...


class Inspection:
    """Invariant: changes nothing that it looks at.

    `num_orphan_pages` is what the last look found: pages held for rooms that the core does not know.
    """

    def __init__(self, ledger: PageLedger, source: RoomSource) -> None:
        self.num_orphan_pages = 0
        self._ledger = ledger
        self._source = source
        self._look_at = 0.0
        self._since: dict[bytes, tuple[str, float]] = {}  # state, and when it was first seen

    def handle(self, event: object, now: float) -> list[Post]:
        """The answer, if `event` asks for one."""
        if isinstance(event, Received) and isinstance(event.message, AskLedger):
            event = LedgerAsked(event.sender, event.message)
        if not isinstance(event, LedgerAsked):
            return []
        return [Post(event.sender, self._report(event, now))]

    def tick(self, now: float) -> None:
        """Look for orphans and changed states now and then."""
        if now >= self._look_at:
            self._look_at = now + WATCH_INTERVAL_S
            states = self._source.states()
            self._note(states, now)
            orphans = orphans_of(self._ledger, states)
            self.num_orphan_pages = sum(self._num_pages(room) for room in orphans)

    def _note(self, states: Mapping[bytes, str], now: float) -> None:
        """Keep the time of the first look at each room's present state."""
        self._since = {
            room: known
            if (known := self._since.get(room)) is not None and known[0] == state
            else (state, now)
            for room, state in states.items()
        }

    def _report(self, asked: LedgerAsked, now: float) -> LedgerReport:
        message, ledger, transfers = asked.message, self._ledger, asked.transfers
        states = self._source.states()
        self._note(states, now)
        for room, view in transfers.items():
            states.setdefault(room, view.state)
        rooms, more = _page_of(states, message)
        orphans = orphans_of(ledger, states)
        reports = self._source.reports(rooms, transfers, now)
        return LedgerReport(
            command=message.command,
            num_pages=ledger.num_pages,
            pages=ledger.counts(),
            num_rooms=len(states),
            rooms=tuple(self._completed(report, now) for report in reports),
            more=more,
            num_orphan_pages=sum(self._num_pages(room) for room in orphans),
            orphans=tuple(Orphan(r, ledger.counts_of(r)) for r in orphans[:MAX_ORPHANS]),
            page_indices=() if message.room is None else ledger.pages_of(message.room),
        )

    def _completed(self, report: RoomReport, now: float) -> RoomReport:
        """With its pages, and with times that a message can carry."""
        _, since = self._since.get(report.room, ("", now))
        return msgspec.structs.replace(
            report,
            pages=self._ledger.counts_of(report.room),
            age_s=_bounded(report.age_s),
            in_state_s=_bounded(max(report.in_state_s, now - since)),
        )

    def _num_pages(self, room: bytes) -> int:
        return len(self._ledger.pages_of(room))


def counted(count: int, noun: str) -> str:
    """`1 page`, `2 pages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_SECONDS)


def orphans_of(ledger: PageLedger, known: Collection[bytes]) -> list[bytes]:
    """Rooms that hold pages and that nobody knows any more; a sound engine has none."""
    return [room for room in ledger.rooms() if room not in known]


def _page_of(states: Mapping[bytes, str], message: AskLedger) -> tuple[list[bytes], bool]:
    """The rooms to report, and whether more follow."""
    if message.room is not None:
        return [room for room in (message.room,) if room in states], False
    following = (room for room in states if room > message.after)
    rooms = heapq.nsmallest(MAX_REPORTED + 1, following)
    return rooms[:MAX_REPORTED], len(rooms) > MAX_REPORTED

"""Rooms that ended while their prefill engine could still write our pages.

A quarantine ends at once when the writer says that all its writes completed. It ends after `SETTLE_S`
when a write was cut short or the writer's process is known to be dead: bytes of it may still be on their
way, and the transport is kept moving meanwhile so that they arrive while the pages are nobody's. Until
then the writer is asked again and again to stop. A writer that is only silent ends no quarantine: after
`QUARANTINE_LIMIT_S` nothing but the end of this process, and of its memory with it, makes the pages safe.
"""

from dataclasses import dataclass

from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import AbortRoom, FailureReason
from engine.core import Post

ASK_AGAIN_S = 1.0
SETTLE_S = 2.0
QUARANTINE_LIMIT_S = 60.0
MIN_ASKED = 5  # times before silence counts: our own process may have been stopped meanwhile


@dataclass(frozen=True, slots=True)
class QuarantineView:
    """One room's quarantine, for a look; it ends by time alone at `free_at`, if that is set."""

    writer: Peer
    since: float
    num_asked: int
    free_at: float | None


@dataclass(slots=True)
class _Quarantined:
    writer: Peer
    since: float
    ask_at: float
    num_resends: int
    num_asked: int = 1
    free_at: float | None = None


class Quarantine:
    """Knows which writer each quarantined room waits for."""

    def __init__(self) -> None:
        self._rooms: dict[bytes, _Quarantined] = {}

    def add(self, room: bytes, writer: Peer, now: float, num_resends: int = 0) -> None:
        """The room ended while `writer` may still write; it was asked to stop just now.

        `num_resends` is how often it was asked to write damaged blocks once more.
        """
        self._rooms[room] = _Quarantined(writer, now, now + ASK_AGAIN_S, num_resends)

    def writer_of(self, room: bytes) -> Peer | None:
        """Whom the room waits for; None if it is not here."""
        entry = self._rooms.get(room)
        return None if entry is None else entry.writer

    def view(self, room: bytes) -> QuarantineView | None:
        """How the room's quarantine stands; None if it is not here."""
        entry = self._rooms.get(room)
        if entry is None:
            return None
        return QuarantineView(entry.writer, entry.since, entry.num_asked, entry.free_at)

    def num_resends_of(self, room: bytes) -> int:
        """How often the room's writer was asked to write blocks once more."""
        entry = self._rooms.get(room)
        return 0 if entry is None else entry.num_resends

    def end(self, room: bytes) -> bool:
        """The writer stopped; whether the room was here."""
        return self._rooms.pop(room, None) is not None

    def is_settling(self, room: bytes) -> bool:
        """Whether the room's end is a matter of time alone."""
        entry = self._rooms.get(room)
        return entry is not None and entry.free_at is not None

    def cut(self, room: bytes, now: float) -> None:
        """The room's writer stopped in the middle of a write."""
        entry = self._rooms.get(room)
        if entry is not None and entry.free_at is None:
            entry.free_at = now + SETTLE_S

    def torn_down(self, ref: WorkerRef, now: float) -> None:
        """The writer is dead and its connection gone: its rooms are free after a settling time."""
        for entry in self._rooms.values():
            if entry.writer.ref == ref and entry.free_at is None:
                entry.free_at = now + SETTLE_S

    def due(self, now: float) -> list[bytes]:
        """Rooms whose settling time is over."""
        return [r for r, e in self._rooms.items() if e.free_at is not None and now >= e.free_at]

    def requests(self, now: float) -> list[Post]:
        """What to ask of writers that have not answered."""
        posts = []
        for room, entry in self._rooms.items():
            if entry.free_at is None and now >= entry.ask_at:
                entry.ask_at = now + ASK_AGAIN_S
                entry.num_asked += 1
                posts.append(Post(entry.writer, AbortRoom(room, FailureReason.PEER_ABORTED)))
        return posts

    def hopeless(self, now: float) -> WorkerRef | None:
        """A writer that was asked and gave no sign within the limit, if there is one."""
        for entry in self._rooms.values():
            was_asked = entry.free_at is None and entry.num_asked >= MIN_ASKED
            if was_asked and now - entry.since >= QUARANTINE_LIMIT_S:
                return entry.writer.ref
        return None

    def rooms(self) -> set[bytes]:
        """Rooms in quarantine."""
        return set(self._rooms)

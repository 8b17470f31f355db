"""Which prefill engines may be promised pages, which are gone, and which rooms they have started.

It knows no rooms' states and no pages.
"""

from bootstrap.identity import WorkerRef
from bootstrap.membership import WorkerInfo
from bootstrap.recent_rooms import RecentRooms

EARLY_TTL_S = 60.0
MAX_GONE = 1 << 12


class Partners:
    """An engine is known from its joining until it is known dead; it is gone from its leaving until
    it joins again. One that only fell silent is both."""

    def __init__(self) -> None:
        self._known: dict[WorkerRef, WorkerInfo] = {}
        self._gone: dict[WorkerRef, None] = {}  # oldest first
        self._started = RecentRooms(ttl_s=EARLY_TTL_S)

    def joined(self, info: WorkerInfo) -> None:
        """A prefill engine is there, perhaps again."""
        self._known[info.peer.ref] = info
        self._gone.pop(info.peer.ref, None)

    def left(self, ref: WorkerRef, dead: bool) -> WorkerInfo | None:
        """It is gone; what was known of it, if it is dead and its connection must go too.

        One that fell silent may be found dead later: until then its transport is kept in mind.
        """
        self._gone[ref] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        return self._known.pop(ref, None) if dead else None

    def is_known(self, ref: WorkerRef) -> bool:
        """Whether its death would be told us."""
        return ref in self._known

    def is_gone(self, ref: WorkerRef) -> bool:
        """Whether it left and is not back."""
        return ref in self._gone

    def started(self, room: bytes, now: float) -> None:
        """A prefill engine holds the room's pages, and this engine may not have it yet."""
        self._started.add(room, now)

    def take_start(self, room: bytes) -> bool:
        """Whether the room was started; that is forgotten."""
        return self._started.discard(room)

"""Which prefill engines may be promised pages, which are gone or out of reach, and which rooms they have
started. It knows no pages.
"""

from collections.abc import Iterable

from bootstrap.identity import WorkerRef
from bootstrap.liveness import Liveness
from bootstrap.membership import WorkerInfo
from bootstrap.messages import Ping
from bootstrap.recent_rooms import RecentRooms
from decode.request import NEEDS_PREFILL, DecodeRequest
from engine.core import Post

EARLY_TTL_S = 60.0
MAX_GONE = 1 << 12
SILENCE_S = 4.5  # longer than the balancer's: it knows better which of two is out of reach


class Partners:
    """An engine is known from its joining until it is known dead; it is gone from its leaving until
    it joins again. One that only fell silent is both, as long as it is among the last MAX_GONE."""

    def __init__(self) -> None:
        self._known: dict[WorkerRef, WorkerInfo] = {}
        self._gone: dict[WorkerRef, None] = {}  # oldest first
        self._started = RecentRooms(ttl_s=EARLY_TTL_S)
        self._liveness = Liveness(SILENCE_S)

    def joined(self, info: WorkerInfo) -> None:
        """A prefill engine is there, perhaps again."""
        self._known[info.peer.ref] = info
        self._gone.pop(info.peer.ref, None)

    def left(self, ref: WorkerRef, dead: bool) -> WorkerInfo | None:
        """It is gone; what was known of it, if it is dead and its connection must go too.

        One that fell silent may be found dead later: until then its transport is kept in mind.
        """
        self._gone[ref] = None
        self._liveness.forget(ref)
        if len(self._gone) > MAX_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._known.pop(oldest, None)
        return self._known.pop(ref, None) if dead else None

    def look(
        self, requests: Iterable[DecodeRequest], now: float
    ) -> tuple[list[Post], list[DecodeRequest]]:
        """Whom to ask for a sign of life, and the requests that wait for one who gives none."""
        waiting = [r for r in requests if r.state in NEEDS_PREFILL]
        asks, _ = self._liveness.look((r.dispatch.prefill for r in waiting), now)
        lost = self._liveness.lost
        cut_off = [r for r in waiting if r.dispatch.prefill.ref in lost]
        return [Post(peer, Ping()) for peer in asks], cut_off

    def answered(self, ref: WorkerRef, now: float) -> None:
        """It gave a sign of life."""
        self._liveness.answered(ref, now)

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

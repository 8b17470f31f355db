"""A bounded memory of rooms: tombstones of ended ones, and news that came before its dispatch."""

from collections import OrderedDict

TOMBSTONE_TTL_S = 900.0
MAX_ROOMS = 1 << 17


class RecentRooms:
    """Rooms added within the last `ttl_s`, at most `limit` of them; the oldest go first.

    As tombstones (the default time) they outlive every message that could still name the room.
    """

    def __init__(self, ttl_s: float = TOMBSTONE_TTL_S, limit: int = MAX_ROOMS) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self._added_at: OrderedDict[bytes, float] = OrderedDict()

    def add(self, room: bytes, now: float) -> None:
        """Remember `room` from `now` on; a repeat does not renew it."""
        self._added_at.setdefault(room, now)
        while self._added_at:
            oldest, added_at = next(iter(self._added_at.items()))
            if len(self._added_at) <= self._limit and now - added_at < self._ttl_s:
                break
            del self._added_at[oldest]

    def discard(self, room: bytes) -> bool:
        """Forget `room`; whether it was here."""
        return self._added_at.pop(room, None) is not None

    def __contains__(self, room: bytes) -> bool:
        return room in self._added_at

    def __len__(self) -> int:
        return len(self._added_at)

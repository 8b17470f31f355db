"""Messages for rooms that are not alive here: counted, and answered now and then."""

from collections import Counter

ANSWERS_PER_S = 200
REPEAT_S = 1.0


class Strays:
    """At most one answer per room and REPEAT_S, and ANSWERS_PER_S in all."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._answered_at: dict[bytes, float] = {}  # oldest first
        self._second = 0
        self._num_answers = 0

    def count(self, why: str) -> None:
        """One more message dropped: its `room` is not alive, or its `kind` is not for balancers."""
        self.counts[why] += 1

    def may_answer(self, room: bytes, now: float) -> bool:
        """Whether to tell the sender that nobody waits for `room`."""
        while self._answered_at:
            oldest, answered_at = next(iter(self._answered_at.items()))
            if now - answered_at < REPEAT_S:
                break
            del self._answered_at[oldest]
        if int(now) != self._second:
            self._second, self._num_answers = int(now), 0
        if self._num_answers >= ANSWERS_PER_S or room in self._answered_at:
            return False
        self._answered_at[room] = now
        self._num_answers += 1
        return True

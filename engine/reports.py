"""Progress reports: once a second, a word to each balancer about every room that is held for it.

A room that a report does not name is lost, and its balancer acts on that. So reports go on for a while
after the last room has ended: an empty one is what tells a balancer that its last message got lost.
"""

from collections.abc import Iterable

from bootstrap.identity import Peer
from bootstrap.messages import LegProgress, Stage
from engine.core import Post

INTERVAL_S = 1.0
LINGER_S = 10.0


class ProgressReports:
    """Knows to whom reports go, and when the next are due."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._until: dict[Peer, float] = {}

    def expect(self, balancer: Peer, now: float) -> None:
        """The balancer dispatched a room at `now`, whatever became of it."""
        self._until[balancer] = now + LINGER_S

    def due(self, rooms: Iterable[tuple[Peer, bytes, Stage]], now: float) -> list[Post]:
        """The reports to send at `now`; most often none."""
        if now < self._next_at:
            return []
        self._next_at = now + INTERVAL_S
        stages: dict[Peer, dict[bytes, Stage]] = {}
        for balancer, room, stage in rooms:
            self.expect(balancer, now)
            stages.setdefault(balancer, {})[room] = stage
        self._until = {peer: until for peer, until in self._until.items() if now < until}
        return [Post(peer, LegProgress(stages.get(peer, {}))) for peer in self._until]

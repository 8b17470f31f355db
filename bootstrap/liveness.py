"""Whether the peers that somebody here waits for can still be reached: each is asked, and must answer.

Pure. A peer may live, beat its lease and even be heard while nothing from here reaches it, and a lease
tells nothing of the way between two. So a question goes out and an answer must come back; the peer
answers it beside its model steps, so that long ones do not look like a death.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bootstrap.identity import Peer, WorkerRef

ASK_EVERY_S = 1.0
SILENCE_S = 3.5  # without an answer: out of reach
PROBATION_S = 1.0  # for who was out of reach and is waited for anew: it may just have come back
PAUSE_S = 1.0  # no look for so long is a pause of this process, in which answers may lie unread


@dataclass(slots=True)
class _Asked:
    peer: Peer
    heard_at: float  # or when the waiting for it began
    ask_at: float
    lost: bool = False
    awaited: bool = True  # at the last look


class Liveness:
    """A peer is remembered while somebody waits for it, and until it answers once it was lost."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._asked: dict[WorkerRef, _Asked] = {}
        self._looked_at: float | None = None

    @property
    def lost(self) -> frozenset[WorkerRef]:
        """Who is out of reach now."""
        return frozenset(ref for ref, asked in self._asked.items() if asked.lost)

    def look(self, awaited: Iterable[Peer], now: float) -> tuple[list[Peer], list[WorkerRef]]:
        """Whom to ask now, and who is newly out of reach; call it several times a second."""
        self._allow_for_pause(now)
        peers = {peer.ref: peer for peer in awaited}
        for ref, peer in peers.items():
            self._wait_for(self._asked.setdefault(ref, _Asked(peer, now, now + ASK_EVERY_S)), now)
        for ref in [r for r in self._asked if r not in peers]:
            self._asked[ref].awaited = False
            if not self._asked[ref].lost:
                del self._asked[ref]
        asks = [asked for asked in self._asked.values() if now >= asked.ask_at]
        for asked in asks:
            asked.ask_at = now + ASK_EVERY_S
        silent = [
            ref
            for ref, asked in self._asked.items()
            if not asked.lost and now - asked.heard_at >= self._silence_s
        ]
        for ref in silent:
            self._asked[ref].lost = True
        return [asked.peer for asked in asks], silent

    def answered(self, ref: WorkerRef, now: float) -> bool:
        """The peer answered; whether it was out of reach until now."""
        asked = self._asked.get(ref)
        if asked is None:
            return False
        was_lost, asked.lost, asked.heard_at = asked.lost, False, now
        return was_lost

    def forget(self, ref: WorkerRef) -> None:
        """The peer's life is over."""
        self._asked.pop(ref, None)

    def _wait_for(self, asked: _Asked, now: float) -> None:
        if asked.lost and not asked.awaited:
            asked.lost, asked.ask_at = False, now
            asked.heard_at = now - self._silence_s + PROBATION_S
        asked.awaited = True

    def _allow_for_pause(self, now: float) -> None:
        paused_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if paused_s >= PAUSE_S:
            for asked in self._asked.values():
                asked.heard_at += paused_s

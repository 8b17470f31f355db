"""Which load balancers an engine works for, and whose rooms have to end because nobody wants them.

Pure, and the same for both roles. It knows who is a member and who dispatched, not the rooms.
"""

from bootstrap.identity import WorkerRef
from bootstrap.messages import DecodeDispatch, Ping, PrefillDispatch
from engine.core import BalancerIsMember, PeerLeft, Received

WATCH_S = 10.0
MAX_DEAD = 1 << 12


class Balancers:
    """A balancer that dispatched is a member, on watch or dead.

    Who is no member but dispatches is heard: its joining may be on its way, or it has lost the bootstrap
    service alone. It is on watch, and lost when nothing was heard of it for WATCH_S: the dispatch may
    have waited here while its sender died. One that waits for an answer asks every second whether the
    engine is there, so it is heard for as long as it lives.
    """

    def __init__(self) -> None:
        self._members: set[WorkerRef] = set()
        self._watched: dict[WorkerRef, float] = {}  # until when
        self._dead: dict[WorkerRef, None] = {}  # oldest first
        self.num_lost = 0

    def handle(self, event: object, now: float) -> frozenset[WorkerRef]:
        """Take one event of the engine's; the balancers whose rooms have to end now."""
        if isinstance(event, BalancerIsMember):
            self._watched.pop(event.ref, None)
            self._members.add(event.ref)
        elif isinstance(event, PeerLeft):
            return self._left(event)
        elif isinstance(event, Received):
            message = event.message
            if isinstance(message, PrefillDispatch | DecodeDispatch):
                self._heard(message.reply_to.ref, now)
            elif isinstance(message, Ping) and event.sender.ref in self._watched:
                self._heard(event.sender.ref, now)
        return frozenset()

    def unheard(self, now: float) -> frozenset[WorkerRef]:
        """Whose watch is over: their rooms have to end now."""
        over = frozenset(ref for ref, until in self._watched.items() if now >= until)
        for ref in over:
            del self._watched[ref]
        self.num_lost += len(over)
        return over

    def is_dead(self, ref: WorkerRef) -> bool:
        """Whether it wants no answer any more, ever."""
        return ref in self._dead

    def _heard(self, ref: WorkerRef, now: float) -> None:
        if ref not in self._members and ref not in self._dead:
            self._watched[ref] = now + WATCH_S

    def _left(self, event: PeerLeft) -> frozenset[WorkerRef]:
        """Of engines, and of balancers that never were heard here, nothing is known."""
        ref = event.ref
        is_known = ref in self._members or ref in self._watched
        self._members.discard(ref)
        self._watched.pop(ref, None)
        if event.dead:
            self._dead[ref] = None
            if len(self._dead) > MAX_DEAD:
                del self._dead[next(iter(self._dead))]
        self.num_lost += is_known
        return frozenset({ref}) if is_known else frozenset()

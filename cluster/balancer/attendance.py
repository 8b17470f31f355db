"""Which other balancers live, and who left the cluster lately. Pure; the members are elsewhere."""

from collections import OrderedDict
from dataclasses import dataclass

from bootstrap.directory import Left
from bootstrap.identity import WorkerRef

MAX_DEPARTURES = 64


@dataclass(frozen=True, slots=True)
class Departure:
    """Somebody who left, and when by the balancer's clock."""

    ref: WorkerRef
    is_balancer: bool
    reason: str
    dead: bool
    at: float


class Attendance:
    """Nobody is present and departed at once; the last MAX_DEPARTURES are remembered."""

    def __init__(self) -> None:
        self.balancers: set[WorkerRef] = set()  # but for this one
        self.departures: OrderedDict[WorkerRef, Departure] = OrderedDict()  # the latest last

    def engine_joined(self, ref: WorkerRef) -> None:
        """An engine is there, perhaps again."""
        self.departures.pop(ref, None)

    def balancer_joined(self, ref: WorkerRef) -> None:
        """Another balancer is there, perhaps again."""
        self.departures.pop(ref, None)
        self.balancers.add(ref)

    def left(self, event: Left, now: float) -> None:
        """Somebody is gone; one that fell silent first may later be known dead."""
        before = self.departures.pop(event.ref, None)
        is_balancer = event.ref in self.balancers or (before is not None and before.is_balancer)
        self.balancers.discard(event.ref)
        departure = Departure(event.ref, is_balancer, event.reason.value, event.dead, now)
        self.departures[event.ref] = departure
        while len(self.departures) > MAX_DEPARTURES:
            self.departures.popitem(last=False)

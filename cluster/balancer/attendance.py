"""Who is there, by role, and who left the cluster lately. Pure; what members can do is elsewhere."""

from collections import OrderedDict
from dataclasses import dataclass

from bootstrap.directory import Left
from bootstrap.identity import Role, WorkerRef

MAX_DEPARTURES = 64


@dataclass(frozen=True, slots=True)
class Departure:
    """Somebody who left, and when by the balancer's clock; the role of a stranger is None."""

    ref: WorkerRef
    role: Role | None
    reason: str
    dead: bool
    at: float


class Attendance:
    """Nobody is present and departed at once; the last MAX_DEPARTURES are remembered."""

    def __init__(self) -> None:
        self.departures: OrderedDict[WorkerRef, Departure] = OrderedDict()  # the latest last
        self._present: dict[WorkerRef, Role] = {}

    @property
    def balancers(self) -> set[WorkerRef]:
        """The load balancers, but for this one."""
        return {ref for ref, role in self._present.items() if role is Role.BALANCER}

    def joined(self, ref: WorkerRef, role: Role) -> None:
        """Somebody is there, perhaps again."""
        self.departures.pop(ref, None)
        self._present[ref] = role

    def left(self, event: Left, now: float) -> None:
        """Somebody is gone; one that fell silent first may later be known dead."""
        before = self.departures.pop(event.ref, None)
        role = self._present.pop(event.ref, None if before is None else before.role)
        departure = Departure(event.ref, role, event.reason.value, event.dead, now)
        self.departures[event.ref] = departure
        while len(self.departures) > MAX_DEPARTURES:
            self.departures.popitem(last=False)

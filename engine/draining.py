"""How an engine leaves in order: it takes no new room, finishes those that are here, and goes.

Pure; the same for both roles. What is left at the deadline is the caller's to fail over to other engines.
"""

from dataclasses import dataclass

# So long dispatches may still come from balancers that have not heard of it: a refusal tells them at
# once to look elsewhere, silence only when they hear that the engine is gone.
REFUSING_S = 0.5


@dataclass(frozen=True, slots=True)
class Draining:
    """One drain, from when it was asked for."""

    began_at: float
    deadline_at: float

    @classmethod
    def begin(cls, deadline_s: float, now: float) -> "Draining":
        """What is here may take `deadline_s`."""
        return cls(now, now + deadline_s)

    def is_over(self, idle: bool, now: float) -> bool:
        """Whether to leave; `idle` when no room is here and no peer reads or writes a page."""
        return now >= self.deadline_at or (idle and now - self.began_at >= REFUSING_S)

    def account(self, num_rooms: int, now: float) -> str:
        """What came of it, for people, when `num_rooms` are left."""
        took = f"drained in {now - self.began_at:.1f} s"
        if num_rooms == 0:
            return f"{took}, every room finished here"
        rooms = "1 room was" if num_rooms == 1 else f"{num_rooms} rooms were"
        return f"{took}, {rooms} not done at the deadline and went to other engines"

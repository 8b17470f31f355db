"""How a load balancer leaves: unready first, refusing next, gone when nothing runs any more. Pure."""

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """What a leaving balancer still does."""

    UNREADY = "unready"  # serves all who still come: not everybody knows yet
    REFUSING = "refusing"  # ends what runs
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Leaving:
    """From `began_at` on the phases only go forward."""

    began_at: float
    delay_s: float
    grace_s: float

    @property
    def ends_at(self) -> float:
        """When the last stream must have ended."""
        return self.began_at + self.delay_s + self.grace_s

    def phase(self, num_running: int, now: float) -> Phase:
        """What to do now that so many requests run."""
        if now < self.began_at + self.delay_s:
            return Phase.UNREADY
        return Phase.REFUSING if num_running and now < self.ends_at else Phase.OVER

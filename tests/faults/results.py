"""What a cell of the fault matrix came to, on the pure cores and on real processes alike."""

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """What came of the request that the fault hit, as its client sees it."""

    SAME = "same answer"
    AGAIN = "tried again"  # on the same pair; the client sees the same answer
    ELSEWHERE = "continued elsewhere"  # on another engine or a successor; the same answer too
    UNAVAILABLE = "503"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    WRONG = "wrong bytes"  # nothing in pdserve would have noticed
    BROKEN = "broken"  # it hangs, or something is left behind, or books do not add up


@dataclass(frozen=True, slots=True)
class CellResult:
    """One step of the protocol, one fault, one moment: what came of it.

    `name` is STEP/FAULT/POSITION, with `@LAYOUT` where one cell runs on several (1P+1D, 2P+2D).
    `outcome` is what the client or the cluster saw, in the matrix's words; `ok` says that it is the
    one that the cell allows, within its time. `detection_s` is how long after the fault the cluster
    knew of it, or None where nothing was to be noticed. `detail` says what went wrong.
    """

    name: str
    outcome: str
    detection_s: float | None = None
    detail: str = ""
    ok: bool = True

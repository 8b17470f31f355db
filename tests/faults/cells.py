"""The fault matrix's axes: steps of the protocol, faults, moments; and which combinations mean nothing.

What each cell may come to is `expectations`' to say; how a fault is brought about is `injection`'s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Step(Enum):
    """A step of the protocol; each is one message on one link, or one write."""

    REGISTER = "register"  # engine to bootstrap service
    DISPATCH_P = "dispatch-p"  # balancer to P
    DISPATCH_D = "dispatch-d"  # balancer to D
    ADMIT = "admit"  # P to D: it holds the prompt's pages, so D may commit its own
    MANIFEST = "manifest"  # D to P
    WRITE_0 = "write-0"  # P into D's pages
    WRITE_1 = "write-1"
    WRITE_2 = "write-2"  # the last
    FIRST_TOKEN = "first-token"  # P to balancer
    COMMIT = "commit"  # P to D: the handoff record
    ACCEPT = "accept"  # D to P
    TOKEN_BATCH = "token-batch"  # D to balancer, in the middle of the answer
    FINISH = "finish"  # D to balancer, with the last token
    RELEASE = "release"  # balancer to D: the client's text is complete
    HEARTBEAT = "heartbeat"  # engine to bootstrap service, while a request runs
    CANCEL_P = "cancel-p"  # balancer to P, in the middle of the transfer
    CANCEL_D = "cancel-d"  # balancer to D
    STOPPED = "writer-stopped"  # P to D, after a cancel: no write will follow


class Fault(Enum):
    """What goes wrong: with the step's own message, with an engine, or with the step's link."""

    DELAY = "delay"
    DROP = "drop"
    REPEAT = "repeat"
    REORDER = "reorder"
    TRUNCATE = "truncate"
    CORRUPT = "corrupt"
    KILL_P = "kill-p"
    KILL_D = "kill-d"
    STOP_P = "stop-p"
    STOP_D = "stop-d"
    RESTART_P = "restart-p"  # killed; its successor has the same address
    RESTART_D = "restart-d"
    MOVE_P = "move-p"  # killed; its successor has another address
    MOVE_D = "move-d"
    REPLACE_P = "replace-p"  # stopped, replaced by another incarnation, and woken
    REPLACE_D = "replace-d"
    REFUSE = "refuse"
    RESET = "reset"
    HOLE = "hole"


class Position(Enum):
    """When. For faults of a message: whether the one before it on its link, itself, or the next.

    Repeats differ: after means once more when the room has long ended.
    """

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


class Layout(Enum):
    """How many engines of each role there are."""

    ONE_PAIR = 1
    TWO_PAIRS = 2

    @property
    def label(self) -> str:
        """As users write it."""
        return f"{self.value}P+{self.value}D"


MESSAGE_FAULTS = (
    Fault.DELAY,
    Fault.DROP,
    Fault.REPEAT,
    Fault.REORDER,
    Fault.TRUNCATE,
    Fault.CORRUPT,
)
LINK_FAULTS = (Fault.REFUSE, Fault.RESET, Fault.HOLE)
WRITES = (Step.WRITE_0, Step.WRITE_1, Step.WRITE_2)
TO_SERVICE = (Step.REGISTER, Step.HEARTBEAT)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination, on one layout."""

    step: Step
    fault: Fault
    position: Position
    layout: Layout

    @property
    def name(self) -> str:
        """What `--cells` takes."""
        parts = (self.step.value, self.fault.value, self.position.value)
        return f"{'/'.join(parts)}@{self.layout.label}"

    @property
    def subject(self) -> str:
        """The engine that the fault hits, or whose registration or heartbeat it is."""
        return "p0" if self.fault.value.endswith("-p") else "d0"

    @property
    def meaningless(self) -> str | None:
        """Why there is nothing to try, or None."""
        of_message, is_write = self.fault in MESSAGE_FAULTS, self.step in WRITES
        if of_message and is_write:
            if self.fault is Fault.REPEAT and self.position is Position.AFTER:
                return "a transport tells a write's end after its last byte"
            if self.position is not Position.DURING:
                return "that is another write's cell"
            if self.fault is Fault.REORDER and self.step is WRITES[-1]:
                return "no write follows the last"
        if of_message and self.step is Step.REGISTER and self.position is Position.BEFORE:
            return "a process says nothing before it registers"
        if self.fault is Fault.REFUSE and self.position is Position.DURING:
            return "what was sent has a connection; see reset and refuse after"
        return None


def all_cells() -> Iterator[Cell]:
    """Every combination, meaningless ones included."""
    for layout in Layout:
        for step in Step:
            for fault in Fault:
                for position in Position:
                    yield Cell(step, fault, position, layout)

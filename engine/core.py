"""What an engine's loop and its pure core say to each other.

A core takes events and the time, plans steps for the model, and puts out instructions. It does not
wait, sleep, or know sockets, threads or tensors; the loop around it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bootstrap.identity import Peer, WorkerRef
from bootstrap.membership import WorkerInfo, WorkerLoad
from bootstrap.messages import FailureReason, Message
from bootstrap.sampling import GrammarSpec
from engine.step import RowFault, SampledToken, ScoredPrompt, SequenceChunk

StepResult = SampledToken | ScoredPrompt | RowFault | None


@dataclass(frozen=True, slots=True)
class Received:
    """Event: a message arrived from `sender`."""

    sender: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """Event: a worker registered."""

    info: WorkerInfo


@dataclass(frozen=True, slots=True)
class BalancerIsMember:
    """Event: a load balancer registered."""

    ref: WorkerRef


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """Event: an engine's or balancer's incarnation is gone. `dead` when its process has ended."""

    ref: WorkerRef
    dead: bool


@dataclass(frozen=True, slots=True)
class GrammarCompiled:
    """Event: the room's grammar, for its SampleAt, or what is wrong with it."""

    room: bytes
    grammar: object
    problem: str | None = None
    reason: FailureReason = FailureReason.BAD_REQUEST  # of a room that ends by it


@dataclass(frozen=True, slots=True)
class CompileGrammar:
    """Instruction: answered by `GrammarCompiled`."""

    room: bytes
    spec: GrammarSpec


@dataclass(frozen=True, slots=True)
class Post:
    """Instruction: send `message` to `peer`."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Before the step: keep a copy of these pages' bytes under `room`."""

    room: bytes
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Before the step, after all SwapOuts: bring blocks `first_block...` of the copy back.

    The copy is dropped after it.
    """

    room: bytes
    first_block: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One model step: chunk i belongs to `rooms[i]`."""

    rooms: tuple[bytes, ...]
    chunks: tuple[SequenceChunk, ...]
    swaps: tuple[SwapOut | SwapIn, ...] = ()


class EngineCore(Protocol):
    """The pure part of an engine."""

    def handle(self, event: object, now: float) -> None:
        """Take one event."""
        ...

    def tick(self, now: float) -> None:
        """Let time pass: deadlines, progress reports, repeats."""
        ...

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to compute."""
        ...

    def complete(self, plan: StepPlan, results: Sequence[StepResult], now: float) -> None:
        """The step ran; `results[i]` belongs to chunk i."""
        ...

    def step_failed(self, plan: StepPlan, detail: str, now: float) -> None:
        """The step raised: its rooms end, the others go on."""
        ...

    def take_no_more(self) -> None:
        """Refuse new rooms from now on; those that are here go on."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no room is here and no peer may still read or write a page."""
        ...

    def shut_down(self, now: float) -> None:
        """End every room; the process is about to leave."""
        ...

    def drain(self) -> list[object]:
        """Instructions since the last call, in order."""
        ...

    def load(self) -> WorkerLoad:
        """What the next heartbeat says."""
        ...

    def validate(self) -> None:
        """Re-derive every count; raises where the core contradicts itself."""
        ...

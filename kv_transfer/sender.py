"""One room's outgoing KV as a state machine: events in, instructions out.

It owns which blocks have been written, which writes are in flight, and when the handoff record may go.
It knows no sockets, transports or pages' owners.

    WAITING    computing, no manifest yet              READY      computed, no manifest yet
    STREAMING  computing, blocks go out as they end    FLUSHING   computed, writes in flight
    COMMITTED  every write landed, the record is out   STOPPING   ended early, writes in flight
    DONE       the peer took over                      STOPPED    ended early, nothing in flight

A record is sent only after every write completed, and `Stopped` is said only when none is in flight:
these two sentences are what a peer's page safety rests on. A peer that finds blocks damaged has them
written again, which leads from COMMITTED back to FLUSHING.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from bootstrap.errors import IllegalTransition


class SendState(Enum):
    """Where a room's outgoing transfer stands."""

    WAITING = "waiting"
    STREAMING = "streaming"
    READY = "ready"
    FLUSHING = "flushing"
    COMMITTED = "committed"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"


class SendEvent(Enum):
    """What can happen to it."""

    MANIFEST = "manifest"
    BLOCKS = "blocks"
    COMPUTED = "computed"
    WRITTEN = "written"
    ACCEPTED = "accepted"
    DAMAGED = "damaged"
    END = "end"


_S, _E = SendState, SendEvent

# (state, event) -> the states it may lead to; a pair that is missing is a bug of ours.
TRANSITIONS: dict[tuple[SendState, SendEvent], tuple[SendState, ...]] = {
    (_S.WAITING, _E.BLOCKS): (_S.WAITING,),
    (_S.WAITING, _E.MANIFEST): (_S.STREAMING,),
    (_S.WAITING, _E.COMPUTED): (_S.READY,),
    (_S.WAITING, _E.END): (_S.STOPPED,),
    (_S.STREAMING, _E.BLOCKS): (_S.STREAMING,),
    (_S.STREAMING, _E.WRITTEN): (_S.STREAMING, _S.STOPPING, _S.STOPPED),
    (_S.STREAMING, _E.COMPUTED): (_S.FLUSHING, _S.COMMITTED),
    (_S.STREAMING, _E.END): (_S.STOPPING, _S.STOPPED),
    (_S.READY, _E.MANIFEST): (_S.FLUSHING, _S.COMMITTED),
    (_S.READY, _E.END): (_S.STOPPED,),
    (_S.FLUSHING, _E.WRITTEN): (_S.FLUSHING, _S.COMMITTED, _S.STOPPING, _S.STOPPED),
    (_S.FLUSHING, _E.END): (_S.STOPPING, _S.STOPPED),
    (_S.COMMITTED, _E.ACCEPTED): (_S.DONE,),
    (_S.COMMITTED, _E.DAMAGED): (_S.FLUSHING,),
    (_S.COMMITTED, _E.END): (_S.STOPPED,),
    (_S.STOPPING, _E.WRITTEN): (_S.STOPPING, _S.STOPPED),
    (_S.STOPPING, _E.END): (_S.STOPPING,),
    (_S.STOPPING, _E.BLOCKS): (_S.STOPPING,),
    (_S.STOPPING, _E.COMPUTED): (_S.STOPPING,),
}

ENDED = (_S.DONE, _S.STOPPED)


@dataclass(frozen=True, slots=True)
class StartWrite:
    """Write these (local page, remote page) pairs, in logical order, as write number `write`."""

    write: int
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Every write landed: send the handoff record for `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The transport lost a write; the room cannot be handed off."""

    detail: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """No write is in flight and none will follow: acknowledge, and let the pages go.

    `cut` when a write ended by an error, so that its last bytes may still be on their way.
    """

    epoch: int  # 0 when no manifest was seen
    cut: bool = False


Instruction = StartWrite | Commit | WriteFailed | Stopped


class Sender:
    """Blocks go out in logical order, only after they were computed, and again only if damaged."""

    def __init__(self, pages: Sequence[int]) -> None:
        self.state = SendState.WAITING
        self.epoch = 0
        self._pages = tuple(pages)
        self._remote: tuple[int, ...] = ()
        self._first_block = 0
        self._num_computed = 0  # blocks whose bytes are final
        self._num_started = 0  # blocks that a write was started for, or that the peer has
        self._in_flight: set[int] = set()
        self._next_write = 0
        self._cut = False
        self._story: list[str] = []

    @property
    def num_in_flight(self) -> int:
        """Writes that have begun and not ended."""
        return len(self._in_flight)

    @property
    def num_writes(self) -> int:
        """Writes that have begun, those that ended included."""
        return self._next_write

    # --- events --------------------------------------------------------------------------------

    def manifest(self, epoch: int, first_block: int, pages: Sequence[int]) -> list[Instruction]:
        """The peer named its pages for blocks `first_block...`; together they cover the prompt."""
        self.epoch = epoch
        self._first_block = self._num_started = first_block
        self._remote = tuple(pages)
        if self.state is _S.WAITING:
            self._advance(_E.MANIFEST, _S.STREAMING)
            return self._start_writes()
        started = self._start_writes()
        return [*started, *self._settle(_E.MANIFEST)]

    def covers(self, first_block: int, num_pages: int) -> bool:
        """Whether a manifest of that extent names exactly the prompt's remaining blocks."""
        return first_block + num_pages == len(self._pages)

    def blocks_computed(self, num_blocks: int) -> list[Instruction]:
        """The first `num_blocks` blocks are final."""
        self._num_computed = max(self._num_computed, num_blocks)
        self._advance(_E.BLOCKS, self.state)
        return self._start_writes() if self.state is _S.STREAMING else []

    def computed(self) -> list[Instruction]:
        """The whole prompt is computed, its last and partial block included."""
        self._num_computed = len(self._pages)
        if self.state is _S.STREAMING:
            return [*self._start_writes(), *self._settle(_E.COMPUTED)]
        self._advance(_E.COMPUTED, _S.READY if self.state is _S.WAITING else self.state)
        return []

    def written(self, write: int, error: str | None) -> list[Instruction]:
        """Write number `write` will touch the peer no more; `error` is None if all bytes landed."""
        self._in_flight.discard(write)
        self._cut = self._cut or error is not None
        if error is not None and self.state is not _S.STOPPING:
            return [WriteFailed(error), *self._stop(_E.WRITTEN)]
        if self.state is _S.STREAMING:
            self._advance(_E.WRITTEN, _S.STREAMING)
            return []
        if self.state is _S.STOPPING:
            return self._stop(_E.WRITTEN)
        return self._settle(_E.WRITTEN)

    def accepted(self) -> None:
        """The peer verified the record."""
        self._advance(_E.ACCEPTED, _S.DONE)

    def damaged(self, blocks: Sequence[int]) -> list[Instruction]:
        """The peer found these blocks damaged: write them again, then commit again."""
        self._advance(_E.DAMAGED, _S.FLUSHING)
        return [self._start_write(blocks)]

    def was_written(self, blocks: Sequence[int]) -> bool:
        """Whether all of these blocks went to the peer."""
        return all(self._first_block <= block < self._num_started for block in blocks)

    def end(self) -> list[Instruction]:
        """The room ends here, whatever its state; repeats change nothing."""
        if self.state in ENDED:
            return []
        if self.state is _S.STOPPING:
            self._advance(_E.END, _S.STOPPING)
            return []
        return self._stop(_E.END)

    # --- inner ---------------------------------------------------------------------------------

    def _start_writes(self) -> list[Instruction]:
        blocks = range(self._num_started, self._num_computed)
        if not blocks:
            return []
        self._num_started = self._num_computed
        return [self._start_write(blocks)]

    def _start_write(self, blocks: Sequence[int]) -> StartWrite:
        remote = [self._remote[block - self._first_block] for block in blocks]
        local = [self._pages[block] for block in blocks]
        write = self._next_write
        self._next_write += 1
        self._in_flight.add(write)
        return StartWrite(write, tuple(zip(local, remote, strict=True)))

    def _settle(self, event: SendEvent) -> list[Instruction]:
        if self._in_flight:
            self._advance(event, _S.FLUSHING)
            return []
        self._advance(event, _S.COMMITTED)
        return [Commit(self.epoch)]

    def _stop(self, event: SendEvent) -> list[Instruction]:
        if self._in_flight:
            self._advance(event, _S.STOPPING)
            return []
        self._advance(event, _S.STOPPED)
        return [Stopped(self.epoch, self._cut)]

    def _advance(self, event: SendEvent, target: SendState) -> None:
        self._story.append(f"{self.state.value} -{event.value}-> {target.value}")
        if target not in TRANSITIONS.get((self.state, event), ()):
            raise IllegalTransition("; ".join(self._story))
        self.state = target

    def validate(self) -> None:
        """Raise AssertionError where the machine contradicts itself."""
        assert self._num_started <= max(self._num_computed, self._first_block)
        assert not (self.state in (*ENDED, _S.COMMITTED, _S.WAITING, _S.READY) and self._in_flight)
        if self.state is _S.COMMITTED:
            assert self._num_started == len(self._pages)

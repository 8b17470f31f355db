"""Writes into decode engines' pages: each lands page by page, and then its end is reported.

Bytes of a write that was cut short, or whose writer died, may still come for a moment, as garbage. Every
landing is checked against the target's ledger: this is where a page that two rooms could write shows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from kv_transfer.ledger import PageState
from tests.faults.clock import Clock
from tests.faults.network import Network
from tests.faults.processes import Worker
from tests.support.joined_memory import GARBAGE, PageViolation
from tests.support.joined_nodes import DecodeNode, PrefillNode, Write

WRITE_S = 0.008
REFUSAL_S = 0.002  # until a write to nobody fails
DEBRIS_S = 1.5  # how long the rest of a cut write may still arrive


@dataclass(slots=True, eq=False)
class Flight:
    """A write on its way. `over` when its writer has been told how it ended."""

    number: int
    write: Write
    source: Worker
    over: bool = False
    spoiled: str | None = None  # the transport says that it landed, and it did not, or not so

    @property
    def room(self) -> bytes:
        """Whose KV it is."""
        return self.write.submit.room


class Transport:
    """`about_to_fly` may take a write over by returning False; `landed` hears when one has ended."""

    def __init__(
        self, clock: Clock, network: Network, workers: Callable[[], list[Worker]], rng: Random
    ) -> None:
        self._clock = clock
        self._network = network
        self._workers = workers
        self._rng = rng
        self._numbers = count()
        self.flights: list[Flight] = []  # every write ever, in order
        self.about_to_fly: Callable[[Flight], bool] = lambda flight: True
        self.has_flown: Callable[[Flight], None] = lambda flight: None
        self.landed: Callable[[Flight], None] = lambda flight: None

    def look(self, source: Worker) -> None:
        """The pump of `source` may have been asked for writes, or to drop a connection."""
        known = {id(flight.write) for flight in self.active()}
        assert isinstance(source.node, PrefillNode)
        for write in list(source.node.writes):
            if write.doomed:
                self._clock.at(REFUSAL_S, self._cut_doomed)
            if id(write) not in known:
                self._submit(source, write)

    def _submit(self, source: Worker, write: Write) -> None:
        flight = Flight(next(self._numbers), write, source)
        self.flights.append(flight)
        if self.about_to_fly(flight):
            self.fly(flight)
            self.has_flown(flight)

    def fly(self, flight: Flight, delay_s: float = 0.0) -> None:
        """Begin to write."""
        target = self.target(flight)
        if flight.write.doomed or target is None or self._is_refused(flight, target):
            self._clock.at(REFUSAL_S, self.cut, flight, "connection refused")
            return
        self._clock.at(delay_s + WRITE_S / 2, self._land_half, flight)
        self._clock.at(delay_s + WRITE_S, self._finish, flight)

    def cut(self, flight: Flight, error: str) -> None:
        """It ends by an error now; what it left out may still arrive."""
        if not flight.over:
            for _ in range(len(flight.write.left)):
                self._clock.at(self._rng.random() * DEBRIS_S, self._debris, flight)
            self._tell(flight, error)

    def repeat(self, flight: Flight) -> None:
        """The same bytes again, as far as they may be written."""
        flight.write.left.extend(flight.write.submit.pairs)
        while flight.write.left:
            self._land_one(flight, garbage=False)

    def writer_died(self, source: Worker) -> None:
        """Parts of its writes are on their way all the same."""
        for flight in self.active():
            if flight.source is source:
                self.cut(flight, "")

    def target_died(self, target: Worker) -> None:
        """Nobody reads what is written to it."""
        for flight in self.active():
            if flight.write.submit.agent_name == target.info.transfer.agent_name:
                self._clock.at(REFUSAL_S, self.cut, flight, "the peer is gone")

    def link_broke(self, one: str, other: str) -> None:
        """Writes between the two end by errors."""
        for flight in self.active():
            target = self.target(flight)
            if target is not None and self._ends(flight, target) == {one, other}:
                self.cut(flight, "link down")

    def active(self) -> list[Flight]:
        """Writes whose end nobody was told yet."""
        return [flight for flight in self.flights if not flight.over]

    def target(self, flight: Flight) -> Worker | None:
        """Who is written to; None when it is dead."""
        name = flight.write.submit.agent_name
        found = (w for w in self._workers() if w.alive and w.info.transfer.agent_name == name)
        return next(found, None)

    # --- inner ---------------------------------------------------------------------------------

    def _cut_doomed(self) -> None:
        for flight in self.active():
            if flight.write.doomed:
                self.cut(flight, "disconnected")

    def _land_half(self, flight: Flight) -> None:
        if self._goes_on(flight, self._land_half) and flight.spoiled != "drop":
            for _ in range(len(flight.write.left) // 2):
                self._land_one(flight, garbage=False)

    def _finish(self, flight: Flight) -> None:
        if self._goes_on(flight, self._finish):
            if flight.spoiled in ("drop", "truncate"):
                flight.write.left.clear()
            while flight.write.left:
                self._land_one(flight, garbage=flight.spoiled is not None)
            self._tell(flight, None)

    def _goes_on(self, flight: Flight, action: Callable[[Flight], None]) -> bool:
        """False when it is over, and when something holds it up: then it is tried again later."""
        target = self.target(flight)
        if flight.over or target is None:
            self.cut(flight, "the peer is gone")
            return False
        if flight.source.stopped or target.stopped or self._is_holed(flight, target):
            self._clock.at(0.1, action, flight)
            return False
        return True

    def _debris(self, flight: Flight) -> None:
        if flight.write.left:
            self._land_one(flight, garbage=True)

    def _land_one(self, flight: Flight, *, garbage: bool) -> None:
        local, remote = flight.write.left.popleft()
        target = self.target(flight)
        if target is None:
            return
        node, source = target.node, flight.source.node
        assert isinstance(node, DecodeNode)
        assert isinstance(source, PrefillNode)
        content = [GARBAGE] * node.limits.block_size if garbage else source.memory.pages[local]
        _check_landing(node, flight.room, remote)
        node.memory.pages[remote] = list(content)

    def _tell(self, flight: Flight, error: str | None) -> None:
        flight.over = True
        flight.source.act(flight.source.written, flight.write, error)
        self.landed(flight)

    def _ends(self, flight: Flight, target: Worker) -> set[str]:
        return {flight.source.me.endpoint, target.me.endpoint}

    def _is_refused(self, flight: Flight, target: Worker) -> bool:
        return self._network.is_broken(flight.source.me.endpoint, target.me.endpoint)

    def _is_holed(self, flight: Flight, target: Worker) -> bool:
        return self._network.is_holed(flight.source.me.endpoint, target.me.endpoint)


def _check_landing(node: DecodeNode, room: bytes, page: int) -> None:
    state = node.ledger.state_of(page)
    expected = (PageState.WRITING, PageState.QUARANTINED)
    if state not in expected or page not in node.ledger.pages_of(room):
        raise PageViolation(f"a write of room {room.hex()} landed in a page that is {state.value}")


def flights_of(transport: Transport, room: bytes) -> Iterator[Flight]:
    """A room's writes, in order."""
    return (flight for flight in transport.flights if flight.room == room)

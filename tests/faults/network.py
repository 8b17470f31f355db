"""Links between inboxes, as ZMQ over TCP behaves: ordered, at most once, silent about what it lost.

A message names the incarnation that it is for; the address decides only where it arrives. Whatever
happens to a message is decided here, when it is sent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from bootstrap import codec
from bootstrap.errors import WireError
from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import Envelope, Message
from tests.faults.clock import Clock

LATENCY_S = 0.001


@dataclass(slots=True, eq=False)
class Packet:
    """One message on its way. `due` says that it still is."""

    number: int
    sender: Peer
    recipient: WorkerRef | None
    endpoint: str
    message: Message
    due: bool = True

    @property
    def link(self) -> tuple[str, str]:
        """From where to where."""
        return self.sender.endpoint, self.endpoint


@dataclass(slots=True)
class _Line:
    """One direction of a link; `blocked` keeps what is sent, `holed` loses it."""

    free_at: float = 0.0
    blocked: bool = False
    holed: bool = False
    kept: list[Packet] = field(default_factory=list)
    flying: list[Packet] = field(default_factory=list)


class Network:
    """`about_to_send` may take a packet over by returning False; `arrived` hears of each delivery."""

    def __init__(self, clock: Clock, deliver: Callable[[Packet], None], rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._deliver = deliver
        self._lines: dict[tuple[str, str], _Line] = {}
        self._numbers = count()
        self.sent: list[Packet] = []  # every packet ever, in order
        self.about_to_send: Callable[[Packet], bool] = lambda packet: True
        self.has_sent: Callable[[Packet], None] = lambda packet: None

    def send(
        self, sender: Peer, recipient: WorkerRef | None, endpoint: str, message: Message
    ) -> None:
        """Post a message; it arrives after those that were sent on the same link before."""
        packet = Packet(next(self._numbers), sender, recipient, endpoint, message)
        self.sent.append(packet)
        if self.about_to_send(packet):
            self.carry(packet)
            self.has_sent(packet)

    def carry(self, packet: Packet, delay_s: float = 0.0, *, in_order: bool = True) -> None:
        """Put a packet on its link. What is sent later waits for it, unless not `in_order`."""
        line = self._line(packet.link)
        if line.blocked:
            line.kept.append(packet)
        elif not line.holed:
            latency_s = LATENCY_S * self._rng.uniform(0.5, 1.5)
            arrives_at = max(self._clock.now + latency_s + delay_s, line.free_at)
            if in_order:
                line.free_at = arrives_at
            line.flying.append(packet)
            self._clock.at(arrives_at - self._clock.now, self._arrive, packet)

    # --- what links can suffer -----------------------------------------------------------------

    def reset(self, one: str, other: str) -> None:
        """What is on its way is lost; what is sent from now on is not."""
        for line in self._both(one, other):
            for packet in line.flying:
                packet.due = False
            line.flying.clear()

    def refuse(self, one: str, other: str) -> None:
        """No connection can be made: senders keep what they have to say, and what flew is lost."""
        self.reset(one, other)
        for line in self._both(one, other):
            line.blocked = True

    def hole(self, one: str, other: str) -> None:
        """Everything vanishes in both directions, and nobody is told."""
        self.reset(one, other)
        for line in self._both(one, other):
            line.holed = True

    def heal(self, one: str, other: str) -> None:
        """The link works; what was kept arrives."""
        for line in self._both(one, other):
            line.blocked = line.holed = False
            kept, line.kept = line.kept, []
            for packet in kept:
                self.carry(packet)

    def is_broken(self, one: str, other: str) -> bool:
        """Whether a new connection would be refused."""
        return any(line.blocked for line in self._both(one, other))

    def is_holed(self, one: str, other: str) -> bool:
        """Whether bytes vanish."""
        return any(line.holed for line in self._both(one, other))

    def _line(self, link: tuple[str, str]) -> _Line:
        return self._lines.setdefault(link, _Line())

    def _both(self, one: str, other: str) -> Iterator[_Line]:
        yield self._line((one, other))
        if one != other:
            yield self._line((other, one))

    def _arrive(self, packet: Packet) -> None:
        line = self._line(packet.link)
        if packet in line.flying:
            line.flying.remove(packet)
        if packet.due:
            packet.due = False
            self._deliver(packet)


def survives_truncation(packet: Packet, num_lost: int) -> bool:
    """Whether a receiver's codec would take the packet's frame without its last bytes."""
    frame = codec.encode(Envelope(packet.sender, packet.recipient, packet.message))
    try:
        codec.decode(frame[: max(0, len(frame) - num_lost)])
    except WireError:
        return False
    return True

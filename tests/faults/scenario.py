"""What a cluster does while a fault strikes: who asks for what, and which message is the step's.

A scenario brings a cluster to the step and tells, for each packet and write, whether it is the one.
"""

from bootstrap.identity import Role
from bootstrap.membership import Heartbeat, Register
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    HandoffAccepted,
    HandoffRecord,
    Manifest,
    PrefillDispatch,
    PrefillStarted,
    TokenBatch,
    WriterStopped,
)
from tests.faults.cells import TO_SERVICE, WRITES, Cell, Step
from tests.faults.network import Packet
from tests.faults.transport import Flight, flights_of
from tests.faults.world import Client, World
from tests.support.cores import prompt

PROMPT = prompt(11)  # three blocks, the last not full
NUM_TOKENS = 8
STOP_AT = 4  # where the text of a request that is released early is complete
BATCH_AT = 4  # the position of the batch in the middle
BOOT_S = 3.0

_KINDS: dict[Step, tuple[type, str, str]] = {  # message, and first letters of sender and receiver
    Step.REGISTER: (Register, "", "b"),
    Step.DISPATCH_P: (PrefillDispatch, "l", "p"),
    Step.DISPATCH_D: (DecodeDispatch, "l", "d"),
    Step.ADMIT: (PrefillStarted, "p", "d"),
    Step.MANIFEST: (Manifest, "d", "p"),
    Step.FIRST_TOKEN: (TokenBatch, "p", "l"),
    Step.COMMIT: (HandoffRecord, "p", "d"),
    Step.ACCEPT: (HandoffAccepted, "d", "p"),
    Step.TOKEN_BATCH: (TokenBatch, "d", "l"),
    Step.FINISH: (TokenBatch, "d", "l"),
    Step.RELEASE: (AbortRoom, "l", "d"),
    Step.HEARTBEAT: (Heartbeat, "", "b"),
    Step.CANCEL_P: (AbortRoom, "l", "p"),
    Step.CANCEL_D: (AbortRoom, "l", "d"),
    Step.STOPPED: (WriterStopped, "p", "d"),
}


class Scenario:
    """One request, `main`, on p0 and d0, up to the step; the step comes once."""

    def __init__(self, cell: Cell, seed: int) -> None:
        step = cell.step
        self._step = step
        self._subject = cell.subject
        self._cancels = step in (Step.CANCEL_P, Step.CANCEL_D, Step.STOPPED)
        absent = cell.subject if step is Step.REGISTER else None
        self.world = World(seed, cell.layout.value, absent)
        self.main: int | None = None
        self.came = False
        self.num_sent_before = 0  # packets of the time before anything is asked for
        self.world.transport.has_flown = self._write_began

    @property
    def client(self) -> Client:
        """Who asked for the main request."""
        assert self.main is not None
        return self.world.clients[self.main]

    def boot(self) -> None:
        """Engines register, and each pair has served before."""
        world = self.world
        clock, balancer = world.clock, world.balancer
        num_members = len(world.workers())

        def ready() -> bool:
            clients = [balancer, *world.workers()]
            return all(
                c.session.ready and len(c.session.directory.members) == num_members for c in clients
            )

        assert clock.run(BOOT_S, ready), "the cluster does not come up"
        if self._step is not Step.REGISTER:
            pairs = num_members // 2
            warm_ups = [world.submit(prompt(3, first=60 + 9 * i), 2) for i in range(pairs)]
            outcomes = [world.clients[key] for key in warm_ups]
            assert clock.run(BOOT_S, lambda: all(c.outcome == "finished" for c in outcomes))
            assert len({room for c in outcomes for room in c.rooms}) == pairs
        self.num_sent_before = len(world.network.sent)
        start_at = 1.0
        if self._step is Step.HEARTBEAT:
            start_at = world.worker(self._subject).session.due_at - 0.05
        clock.run(start_at, lambda: False)

    def start(self) -> None:
        """Ask for what leads to the step."""
        if self._step is Step.REGISTER:
            role = Role.PREFILL if self._subject[0] == "p" else Role.DECODE
            self.world.start(role, self._subject)
        stop_at = STOP_AT if self._step is Step.RELEASE else None
        self.main = len(self.world.clients)
        self.world.submit(PROMPT, NUM_TOKENS, stop_at)

    # --- which one -----------------------------------------------------------------------------

    def is_step(self, packet: Packet) -> bool:
        """Whether this packet is the step; asked before it is sent."""
        if self.came or self.main is None or self._step in WRITES:
            return False
        kind, sender, receiver = _KINDS[self._step]
        if not isinstance(packet.message, kind):
            return False
        who = packet.sender.ref.worker_id
        if not packet.endpoint.startswith(f"tcp://{receiver}") or not who.startswith(sender):
            return False
        if self._step in TO_SERVICE:
            return who == self._subject
        return self._is_of_main(packet)

    def is_write(self, flight: Flight) -> bool:
        """Whether this write is the step."""
        if self.came or self._step not in WRITES or self.main is None:
            return False
        if not self.client.rooms or flight.room != self.client.rooms[0]:
            return False
        writes = list(flights_of(self.world.transport, flight.room))
        return len(writes) == WRITES.index(self._step) + 1

    def _is_of_main(self, packet: Packet) -> bool:
        message = packet.message
        if isinstance(message, PrefillDispatch | DecodeDispatch):
            return message.request_id == f"r{self.main}"
        rooms = self.client.rooms
        if not isinstance(message, TokenBatch):
            return bool(rooms) and getattr(message, "room", None) == rooms[0]
        mine = [tokens for tokens in message.rooms if rooms and tokens.room == rooms[0]]
        if not mine:
            return False
        if self._step is Step.TOKEN_BATCH:
            return mine[0].position == BATCH_AT
        return self._step is Step.FIRST_TOKEN or mine[0].finish is not None

    def _write_began(self, flight: Flight) -> None:
        if self._cancels and self.main is not None and flight.room in self.client.rooms:
            self.world.clock.at(0.001, self.world.cancel, self.main)
            self._cancels = False

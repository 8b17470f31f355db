"""How each fault is brought about, at its moment."""

from collections.abc import Callable
from functools import cache

from tests.faults.cells import MESSAGE_FAULTS, WRITES, Cell, Fault, Layout, Position, Step
from tests.faults.network import Packet, survives_truncation
from tests.faults.scenario import Scenario
from tests.faults.transport import WRITE_S, Flight
from tests.support.cores import prompt

DELAY_S = 1.5  # longer than anybody waits before it says something again
STOP_S = 8.0  # from SIGSTOP to SIGCONT
RESTART_S = 0.05  # from a death to its successor, where a supervisor is quick
REPLACE_S = 0.5  # from a stop to the successor of what is stopped
REFUSED_S = 1.5
HOLE_S = 45.0  # at most; it is mended once the client has its outcome
OVERTAKEN_S = 3.0  # at most, for want of another message
LATE_S = 0.5  # after the outcome: when a message comes once more
STARTUP_S = 5.0  # from a kill to the successor's registration: a model has to load

NEIGHBOUR = prompt(9, first=40)
NEIGHBOUR_TOKENS = 4


class Injection:
    """Watches a scenario for the step, and strikes once."""

    def __init__(self, cell: Cell, scenario: Scenario, seed: int) -> None:
        self.at: float | None = None
        self.over = False
        self.neighbour: int | None = None
        self._cell, self._scenario, self._world = cell, scenario, scenario.world
        self._own: Packet | Flight | None = None
        self._held: Packet | Flight | None = None
        self._of_message = cell.fault in MESSAGE_FAULTS
        self._target: int | None = None
        if self._of_message and cell.step not in WRITES:
            self._target = packets_around(cell, seed)[cell.position]
            if cell.fault is Fault.REPEAT and cell.position is Position.AFTER:
                self._target = packets_around(cell, seed)[Position.DURING]
        self._world.tap = self._about_to_send
        self._world.network.has_sent = self._has_sent
        self._world.arrived = self._arrived
        transport = self._world.transport
        self._scenario_has_flown: Callable[[Flight], None] = transport.has_flown
        transport.about_to_fly = self._about_to_fly
        transport.has_flown = self._has_flown
        transport.landed = self._landed

    # --- moments of a message ------------------------------------------------------------------

    def _about_to_send(self, packet: Packet) -> bool:
        if isinstance(self._held, Packet):
            self._overtaken(packet, self._held)
        if self._scenario.is_step(packet):
            self._scenario.came, self._own = True, packet
            if not self._of_message and self._cell.position is Position.BEFORE:
                self._strike(*packet.link)
        if packet.number == self._target:
            self._struck()
            return self._spoil(packet)
        return True

    def _has_sent(self, packet: Packet) -> None:
        if self._strikes(packet, Position.DURING):
            self._strike(*packet.link)

    def _arrived(self, packet: Packet) -> None:
        if self._strikes(packet, Position.AFTER):
            self._strike(*packet.link)

    def _strikes(self, what: Packet | Flight, position: Position) -> bool:
        """Whether an engine or a link is struck now, at this moment of the step."""
        is_ours = what is self._own and not self._of_message
        return is_ours and self._cell.position is position

    def _spoil(self, packet: Packet) -> bool:
        """Do to a message what the fault does; whether it goes its way all the same."""
        fault, network = self._cell.fault, self._world.network
        if fault is Fault.DELAY:
            network.carry(packet, DELAY_S)
        elif fault is Fault.REPEAT:
            if self._cell.position is Position.AFTER:
                self._when_ended(LATE_S, self._carry_late, packet)
                return True
            network.carry(packet)
            self._carry_again(packet)
        elif fault is Fault.REORDER:
            self._held = packet
            self._world.clock.at(OVERTAKEN_S, self._overtaken, packet, packet)
            return False
        elif fault is Fault.TRUNCATE:
            assert not survives_truncation(packet, self._world.rng.randint(1, 40))
        elif fault is Fault.CORRUPT:  # CURVE rejects the frame and drops the connection
            network.reset(*packet.link)
        self._world.clock.at(DELAY_S if fault is Fault.DELAY else 0.0, self._end)
        return False

    def _carry_again(self, packet: Packet) -> None:
        again = Packet(
            packet.number, packet.sender, packet.recipient, packet.endpoint, packet.message
        )
        self._world.network.carry(again)
        self.over = True

    def _carry_late(self, packet: Packet) -> None:
        self._world.buried.update(self._scenario.client.rooms)
        self._carry_again(packet)

    def _overtaken(self, packet: Packet, held: Packet) -> None:
        if packet.link == held.link and self._held is held:
            self._held, self.over = None, True
            self._world.clock.at(0.0, self._world.network.carry, held)

    # --- moments of a write --------------------------------------------------------------------

    def _about_to_fly(self, flight: Flight) -> bool:
        held = self._held
        if isinstance(held, Flight) and flight.room == held.room:
            self._held, self.over = None, True
            self._world.clock.at(WRITE_S, self._world.transport.fly, held)
        if not self._scenario.is_write(flight):
            return True
        self._scenario.came, self._own = True, flight
        if self._of_message:
            self._struck()
            return self._spoil_write(flight)
        if self._cell.position is Position.BEFORE:
            self._strike_write(flight)
        return True

    def _has_flown(self, flight: Flight) -> None:
        self._scenario_has_flown(flight)
        if self._strikes(flight, Position.DURING):
            self._world.clock.at(WRITE_S * 0.6, self._strike_write, flight)

    def _landed(self, flight: Flight) -> None:
        if self._strikes(flight, Position.AFTER) and self.at is None:
            self._strike_write(flight)

    def _spoil_write(self, flight: Flight) -> bool:
        fault, transport = self._cell.fault, self._world.transport
        self.over = fault is not Fault.REORDER
        if fault is Fault.DELAY:
            transport.fly(flight, DELAY_S)
            return False
        if fault is Fault.REORDER:
            self._held = flight
            return False
        if fault is Fault.REPEAT:
            self._world.clock.at(WRITE_S * 0.6, transport.repeat, flight)
            return True
        flight.spoiled = fault.value
        return True

    def _strike_write(self, flight: Flight) -> None:
        target = self._world.transport.target(flight)
        decode = self._world.worker("d0") if target is None else target
        self._strike(flight.source.me.endpoint, decode.me.endpoint)

    # --- what happens to engines and links -----------------------------------------------------

    def _strike(self, one: str, other: str) -> None:
        if self.at is not None:
            return
        self._struck()
        fault, world = self._cell.fault, self._world
        if fault in (Fault.REFUSE, Fault.RESET, Fault.HOLE):
            self._strike_link(one, other)
            return
        worker = world.worker(self._cell.subject)
        kind = fault.value.split("-")[0]
        if kind in ("stop", "replace"):
            worker.stop()
            world.clock.at(STOP_S, worker.wake)
            world.clock.at(STOP_S, self._end)
            if kind == "replace":
                world.restart(worker, REPLACE_S, same_address=False)
            return
        world.kill(worker)
        delay_s = STARTUP_S if kind == "kill" else RESTART_S
        world.restart(worker, delay_s, same_address=kind == "restart")
        world.clock.at(delay_s, self._end)

    def _strike_link(self, one: str, other: str) -> None:
        world, fault = self._world, self._cell.fault
        if fault is Fault.HOLE:
            world.network.hole(one, other)
            world.clock.at(HOLE_S, self._mend, one, other)
            self._when_ended(LATE_S, self._mend, one, other)
            return
        world.transport.link_broke(one, other)
        if fault is Fault.RESET:
            world.network.reset(one, other)
            self.over = True
        else:
            world.network.refuse(one, other)
            world.clock.at(REFUSED_S, self._mend, one, other)

    def _mend(self, one: str, other: str) -> None:
        self._world.network.heal(one, other)
        self.over = True

    def _end(self) -> None:
        self.over = True

    def _struck(self) -> None:
        """The fault is here; somebody else wants the same pages."""
        self.at = self._world.clock.now
        self._world.clock.at(0.001, self._ask_beside)

    def _ask_beside(self) -> None:
        self.neighbour = self._world.submit(NEIGHBOUR, NEIGHBOUR_TOKENS)

    def _when_ended(self, delay_s: float, action: Callable[..., None], *args: object) -> None:
        """Once the main request has its outcome."""
        main = self._scenario.main
        if main is not None and self._scenario.client.outcome is not None:
            self._world.clock.at(delay_s, action, *args)
        else:
            self._world.clock.at(0.1, self._when_ended, delay_s, action, *args)


def packets_around(cell: Cell, seed: int) -> dict[Position, int | None]:
    """The numbers of the step's packet, and of those before and after it on its link."""
    return _packets_around(cell.step, cell.layout, cell.subject, seed)


@cache
def _packets_around(
    step: Step, layout: Layout, subject: str, seed: int
) -> dict[Position, int | None]:
    fault = Fault.KILL_P if subject == "p0" else Fault.DROP
    scenario = Scenario(Cell(step, fault, Position.DURING, layout), seed)
    own: list[Packet] = []

    def watch(packet: Packet) -> bool:
        if scenario.is_step(packet):
            scenario.came = True
            own.append(packet)
        return True

    scenario.world.tap = watch
    scenario.boot()
    scenario.start()
    scenario.world.clock.run(scenario.world.clock.now + 3.0, lambda: False)
    assert own, f"{step.value} does not come"
    mine = [packet.number for packet in scenario.world.network.sent if packet.link == own[0].link]
    place = mine.index(own[0].number)
    before = mine[place - 1] if place else None
    if before is not None and before < scenario.num_sent_before:
        before = None
    after = mine[place + 1] if place + 1 < len(mine) else None
    return {Position.BEFORE: before, Position.DURING: own[0].number, Position.AFTER: after}

"""Runs cells of the fault matrix: brings a cluster to the step, strikes, waits until all is quiet, judges.

Whatever the cell, these must hold: exactly one outcome, only tokens of the unbroken run and each once,
no page or room or quarantine left behind, and the next request right at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bootstrap.errors import PdserveError
from tests.faults.cells import MESSAGE_FAULTS, WRITES, Cell, Fault, Position
from tests.faults.expectations import allowed, is_meant
from tests.faults.injection import Injection, packets_around
from tests.faults.results import CellResult, Outcome
from tests.faults.scenario import NUM_TOKENS, PROMPT, Scenario
from tests.faults.world import DEADLINE_S, Client, World
from tests.support.joined_memory import PageViolation

QUIET_S = 6.0  # after the outcome and the fault's end: nothing is held any more
NEXT_S = 1.0  # for the next request, on a cluster at rest


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen of one cell."""

    outcome: Outcome
    seconds: float  # from the fault to the outcome
    detection_s: float | None


class CellFailed(AssertionError):
    """Something that must hold whatever happens does not."""


def run_cell(cell: Cell, seed: int) -> Run:
    """Raises AssertionError or PdserveError where an invariant breaks."""
    scenario = Scenario(cell, seed)
    injection = Injection(cell, scenario, seed)
    world, clock = scenario.world, scenario.world.clock
    scenario.boot()
    scenario.start()
    client = scenario.client
    clock.run(clock.now + DEADLINE_S + 5.0, lambda: injection.at is not None and _ended(client))
    _require(injection.at is not None, "the step did not come")
    _require(client.outcome is not None, "the request hangs")
    assert injection.at is not None
    clock.run(clock.now + DEADLINE_S + 5.0, lambda: injection.over)
    _require(injection.over, "the fault does not end")
    quiet = clock.run(clock.now + QUIET_S, lambda: _is_quiet(world))
    _require(quiet, f"not quiet: {_held(world)}")
    _validate(world)
    _serves_the_next(world)
    return _observed(client, injection.at, world.noticed_at)


def why_meaningless(cell: Cell, seed: int) -> str | None:
    """Why there is nothing to try in this cell, or None."""
    if cell.meaningless or cell.fault not in MESSAGE_FAULTS or cell.step in WRITES:
        return cell.meaningless
    if cell.fault is Fault.REPEAT and cell.position is Position.AFTER:
        return None
    if packets_around(cell, seed)[cell.position] is not None:
        return None
    what = "comes before" if cell.position is Position.BEFORE else "follows"
    return f"nothing {what} it on its link"


def judge(cell: Cell, seed: int) -> CellResult:
    """A cell's result: what came of it, and whether that is the one outcome it may have."""
    wanted, within_s = allowed(cell)
    try:
        run = run_cell(cell, seed)
    except PageViolation as error:
        return CellResult(cell.name, Outcome.WRONG.value, None, str(error), ok=False)
    except (AssertionError, PdserveError) as error:
        detail = f"{type(error).__name__}: {error}"
        return CellResult(cell.name, Outcome.BROKEN.value, None, detail, ok=False)
    detail = ""
    if run.outcome is not wanted:
        detail = f"{run.outcome.value}, not {wanted.value}"
    elif run.seconds > within_s:
        detail = f"took {run.seconds:.2f} s of {within_s:g} s"
    return CellResult(cell.name, run.outcome.value, run.detection_s, detail, ok=not detail)


def run_matrix(cells: Iterable[Cell], seed: int) -> Iterator[CellResult]:
    """Results of all cells that mean something."""
    return (judge(cell, seed) for cell in cells if is_meant(cell))


# --- what must hold --------------------------------------------------------------------------


def _ended(client: Client) -> bool:
    return client.outcome is not None


def _is_quiet(world: World) -> bool:
    if any(client.outcome is None for client in world.clients.values()):
        return False
    if world.transport.active() or _held(world):
        return False
    alive = [worker for worker in world.workers() if worker.alive]
    refs = {worker.me.ref for worker in alive}
    clients = [world.balancer, *alive]
    return len(refs) == world.num_engines and all(
        c.session.ready and {m.info.peer.ref for m in c.session.directory.members} == refs
        for c in clients
    )


def _held(world: World) -> dict[str, object]:
    found: dict[str, object] = {
        worker.me.ref.worker_id: worker.node.leftovers()
        for worker in world.workers()
        if worker.alive and worker.node.leftovers()
    }
    pending = [key for key, client in world.clients.items() if client.outcome is None]
    if pending:
        found["requests"] = pending
    return found


def _validate(world: World) -> None:
    """Books of every core are whole, and nobody holds a debt."""
    world.balancer.core.validate()
    world.service.registry.validate()
    _require(not world.balancer.core.num_requests, "the balancer still has requests")
    for worker in world.workers():
        if worker.alive:
            worker.session.directory.validate()
            worker.node.validate()


def _serves_the_next(world: World) -> None:
    client = world.clients[world.submit(PROMPT, NUM_TOKENS)]
    asked_at = world.clock.now
    world.clock.run(asked_at + NEXT_S, lambda: _ended(client) and not _held(world))
    _require(client.outcome == "finished", f"the next request: {client.outcome} {client.detail}")
    _require(len(client.rooms) == 1, "the next request needed another attempt")
    _require(not _held(world), f"the next request left {_held(world)}")


def _observed(client: Client, struck_at: float, noticed_at: list[float]) -> Run:
    if client.outcome == "finished":
        outcome = Outcome.SAME
        if len(client.pairs) > 1:
            same_pair = client.pairs[0] == client.pairs[-1]
            outcome = Outcome.AGAIN if same_pair else Outcome.ELSEWHERE
    elif client.outcome in ("cancelled", "deadline"):
        outcome = Outcome(client.outcome)
    else:
        _require(client.outcome in ("unavailable", "workers_failed"), f"{client.outcome}")
        outcome = Outcome.UNAVAILABLE
    noticed = [at for at in noticed_at if at >= struck_at]
    detected_at = noticed[0] if noticed else None
    seconds = max(0.0, client.outcome_at - struck_at)
    detection_s = None if detected_at is None else detected_at - struck_at
    return Run(outcome, seconds, detection_s)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CellFailed(what)

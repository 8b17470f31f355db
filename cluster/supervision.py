"""What a supervisor tells of its workers: to files and screens, to its own orders, to its successor."""

from dataclasses import dataclass

from bootstrap.identity import Role
from bootstrap.membership import WorkerLoad, WorkerState
from cluster.actors import Report, WorkerSpec
from cluster.order_book import OrderStatus
from cluster.rollout import Seen
from cluster.runtime import SupervisedWorker
from cluster.supervisor import LifeState, WorkerStatus

_IDLE_STAGES = {LifeState.ENDING: "ending", LifeState.WAITING: "backing off"}


@dataclass(frozen=True, slots=True)
class Supervision:
    """One look: the workers, those that a successor should keep alive, and the latest orders."""

    workers: tuple[SupervisedWorker, ...]
    wanted: tuple[WorkerSpec, ...]
    orders: tuple[OrderStatus, ...]


def supervised(status: WorkerStatus, role: Role, report: Report | None) -> SupervisedWorker:
    """For files and screens; `report` is its process's, if it has one."""
    return SupervisedWorker(
        worker_id=status.worker_id,
        role=role.value,
        state=status.state.value,
        stage=_stage(status, report),
        incarnation=None if status.ref is None else status.ref.incarnation,
        num_restarts=max(0, status.num_starts - 1),
        retry_in_s=round(status.retry_in_s, 1),
        last_error=status.last_error,
    )


def seen(status: WorkerStatus, report: Report | None, load: WorkerLoad | None) -> Seen:
    """For an order; `load` is what the worker's last heartbeat said, if it is a member."""
    words = _stage(status, report)
    if status.state is LifeState.WAITING and status.last_error:
        words = f"starts again in {status.retry_in_s:.1f} s: {status.last_error}"
    elif status.state is LifeState.DRAINING:
        words = "draining" if load is None else f"draining, {load.num_rooms} rooms left"
    serves = load is not None and load.state is WorkerState.READY
    return Seen(
        ready=status.state is LifeState.SERVING and serves,
        placed=report is not None and report.process is not None,
        num_starts=status.num_starts,
        num_failures=status.num_failures,
        last_error=status.last_error,
        words=words,
    )


def _stage(status: WorkerStatus, report: Report | None) -> str:
    return _IDLE_STAGES[status.state] if report is None else report.stage

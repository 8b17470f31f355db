"""The supervisor's shell: turns its decisions into Ray actors and its actors' ends into events.

Owns every worker actor of the cluster: Ray ends them with the supervisor, and the supervisor with
`up`. Decides nothing about who starts when; that is `cluster.supervisor`.
"""

import logging
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bootstrap.client import BootstrapClient
from bootstrap.directory import DirectoryEvent
from bootstrap.identity import Peer, Role, WorkerRef, new_incarnation
from bootstrap.security import Security
from cluster import logs
from cluster.actors import ACTORS, Report, WorkerSpec
from cluster.runtime import SupervisedWorker
from cluster.supervisor import Backoff, Decision, Evict, LifeState, Start, Supervisor

NUM_CPUS_PER_ACTOR = 0.1  # a claim for Ray's scheduler, small enough for laptops
ASK_STARTING_S = 0.2  # how often a starting worker is asked for its stage
ASK_SERVING_S = 2.0
STUCK_S = 60.0  # a process that has answered before and then does not for so long is killed
STOP_GRACE_S = 5.0

_NUM_THREADS = 4  # of an actor: `run`, `report`, `stop`, and one to spare
_MAX_ERROR_CHARS = 600

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Life:
    """One actor: the future of its whole life, and the question it is being asked."""

    actor: Any
    run: Any  # ObjectRef, done when the life is over
    question: Any | None = None  # ObjectRef of a Report
    asked_at: float = 0.0
    report: Report = field(default_factory=lambda: Report("waiting for a process"))
    killed_because: str = ""


class SupervisorActor:
    """Every life in `_lives` is one that the core calls starting or serving.

    `run` alone uses Ray and the core; `status` and `stop` come from other threads and touch only the
    last snapshot and the stop event.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        bootstrap: str,
        secret_file: str | None,
        log_level: str,
    ) -> None:
        logs.configure(Role.SUPERVISOR, "supervisor", log_level)
        security = None if secret_file is None else Security.from_file(secret_file)
        # Nobody writes back to a supervisor: its endpoint is there because every peer has one.
        me = Peer(WorkerRef("supervisor", new_incarnation()), bootstrap)
        self._bootstrap = BootstrapClient(bootstrap, me, security, _ignore)
        self._specs = {spec.worker_id: spec for spec in specs}
        self._core = Supervisor(tuple(self._specs), time.monotonic())
        self._lives: dict[str, _Life] = {}
        self._snapshot: tuple[SupervisedWorker, ...] = ()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Supervise until `stop`; returns when every worker has ended."""
        self._bootstrap.start()
        try:
            while not self._stopping.is_set():
                self._step()
        finally:
            self._end_all()
            self._bootstrap.stop(unregister=False)

    def status(self) -> tuple[SupervisedWorker, ...]:
        """All workers as of the last step, a fraction of a second ago."""
        return self._snapshot

    def stop(self) -> None:
        """Make `run` end every worker and return."""
        self._stopping.set()

    # --- one step --------------------------------------------------------------------------------

    def _step(self) -> None:
        now = time.monotonic()
        for decision in self._core.reconcile(now):
            self._carry_out(decision)
        for life in self._lives.values():
            self._ask(life, now)
        self._snapshot = self._see(now)
        self._wait(now)

    def _wait(self, now: float) -> None:
        """Until a life ends, a question is answered, or a start is due."""
        due_s = self._core.next_due_s(now)
        timeout_s = ASK_STARTING_S if due_s is None else min(due_s, ASK_STARTING_S)
        futures = [life.run for life in self._lives.values()]
        futures += [life.question for life in self._lives.values() if life.question is not None]
        if not futures:
            self._stopping.wait(timeout_s)
            return
        done, _ = ray.wait(futures, num_returns=1, timeout=timeout_s)
        if done:  # whatever else is done by now goes with it
            done, _ = ray.wait(futures, num_returns=len(futures), timeout=0)
        ended = set(done)
        for worker_id, life in list(self._lives.items()):
            if life.question in ended:
                self._answered(worker_id, life)
            if life.run in ended:
                self._over(worker_id, life)

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            self._start(self._specs[decision.worker_id])
        elif isinstance(decision, Evict):
            if self._specs[decision.ref.worker_id].role is not Role.BOOTSTRAP:
                log.info("evicting %s", decision.ref)
                self._bootstrap.evict(decision.ref)
        elif isinstance(decision, Backoff):
            log.error(
                "%s died, starting again in %.1f s: %s",
                decision.worker_id,
                decision.delay_s,
                decision.error,
            )

    def _start(self, spec: WorkerSpec) -> None:
        options: dict[str, Any] = {
            "num_cpus": NUM_CPUS_PER_ACTOR,
            "max_concurrency": _NUM_THREADS,
            "max_restarts": 0,  # restarts are decided here, each one a new incarnation
        }
        if spec.role is Role.BOOTSTRAP:
            # Its endpoint is an address of this node.
            node_id = ray.get_runtime_context().get_node_id()
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
        actor = ray.remote(**options)(ACTORS[spec.role]).remote(spec)
        self._lives[spec.worker_id] = _Life(actor, actor.run.remote())
        log.info("starting %s", spec.worker_id)

    def _ask(self, life: _Life, now: float) -> None:
        interval_s = ASK_SERVING_S if life.report.serving else ASK_STARTING_S
        if life.question is None:
            if now - life.asked_at >= interval_s:
                life.question, life.asked_at = life.actor.report.remote(), now
        elif now - life.asked_at > STUCK_S and life.report.ref and not life.killed_because:
            life.killed_because = f"no sign of life for {STUCK_S:.0f} s, killed"
            ray.kill(life.actor)

    def _answered(self, worker_id: str, life: _Life) -> None:
        question, life.question = life.question, None
        try:
            report: Report = ray.get(question)
        except ray.exceptions.RayError:
            return  # the life is ending; its own future says why
        if report.ref is not None:
            self._core.named(worker_id, report.ref)
        if report.serving and not life.report.serving:
            self._core.serving(worker_id, time.monotonic())
            log.info("%s serves", report.ref)
        life.report = report

    def _over(self, worker_id: str, life: _Life) -> None:
        error = life.killed_because or _why(life.run)
        del self._lives[worker_id]
        for decision in self._core.died(worker_id, error, time.monotonic()):
            self._carry_out(decision)
        # A worker that broke leaves its process behind; a process that died is none to kill.
        ray.kill(life.actor)

    # --- the end ---------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Stop those that serve in order, so that they say goodbye; kill the rest at once."""
        serving = [life for life in self._lives.values() if life.report.serving]
        for life in serving:
            life.actor.stop.remote()
        if serving:
            runs = [life.run for life in serving]
            ray.wait(runs, num_returns=len(runs), timeout=STOP_GRACE_S)
        for life in self._lives.values():
            ray.kill(life.actor)
        self._lives.clear()

    def _see(self, now: float) -> tuple[SupervisedWorker, ...]:
        seen = []
        for status in self._core.status(now):
            life = self._lives.get(status.worker_id)
            waiting = status.state is LifeState.WAITING
            seen.append(
                SupervisedWorker(
                    worker_id=status.worker_id,
                    role=self._specs[status.worker_id].role.value,
                    state=status.state.value,
                    stage="backing off" if waiting or life is None else life.report.stage,
                    incarnation=None if status.ref is None else status.ref.incarnation,
                    num_restarts=max(0, status.num_starts - 1),
                    retry_in_s=round(status.retry_in_s, 1),
                    last_error=status.last_error,
                )
            )
        return tuple(seen)


def _ignore(event: DirectoryEvent) -> None:
    """Who is a member is no business of a supervisor's."""


def _why(run: Any) -> str:
    """What a finished life died of, in a line."""
    try:
        ray.get(run)
    except ray.exceptions.RayTaskError as error:
        return f"{type(error.cause).__name__}: {error.cause}"[:_MAX_ERROR_CHARS]
    except ray.exceptions.RayError as error:
        return told_shortly(str(error))[:_MAX_ERROR_CHARS]
    return "ended without being told to"


def told_shortly(death: str) -> str:
    """Ray's account of a dead process without its ids and its advice."""
    text = " ".join(death.split())
    pid = re.search(r"\bpid: (\d+)", text)
    detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes|$)", text)
    process = "process" if pid is None else f"process {pid.group(1)}"
    return f"{process} died: {text if detail is None else detail.group(1)}"

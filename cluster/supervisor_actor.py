"""The supervisor's shell: turns its decisions into Ray actors and its actors' ends into events.

Owns every worker actor of the cluster: Ray ends them with the supervisor, and the supervisor with
`up`. Decides nothing about who starts when; that is `cluster.supervisor`.
"""

import logging
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
from cluster.deaths import why
from cluster.endings import Endings
from cluster.runtime import SupervisedWorker
from cluster.supervisor import Backoff, Decision, Evict, LifeState, Start, Supervisor

NUM_CPUS_PER_ACTOR = 0.1  # a claim for Ray's scheduler, small enough for laptops
ASK_STARTING_S = 0.2  # how often a starting worker is asked for its stage
ASK_SERVING_S = 2.0
STUCK_S = 60.0  # a process that has answered before and then does not for so long is killed
ASK_ENDING_S = 0.05  # how often a process is looked for that should be gone
STOP_GRACE_S = 5.0

_NUM_THREADS = 4  # of an actor: `run`, `report`, `stop`, and one to spare
_IDLE_STAGES = {LifeState.ENDING: "ending", LifeState.WAITING: "backing off"}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Life:
    """One actor: the future of its whole life, and the question it is being asked."""

    actor: Any
    run: Any  # ObjectRef, done when the life is over
    question: Any | None = None  # ObjectRef of a Report
    asked_at: float = 0.0
    answered_at: float | None = None  # when it first did: from then on it has a process
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
        start_timeout_s: float,
    ) -> None:
        """`start_timeout_s` is how long a process may take until its worker has a name."""
        logs.configure(Role.SUPERVISOR, "supervisor", log_level)
        security = None if secret_file is None else Security.from_file(secret_file)
        # Nobody writes back to a supervisor: its endpoint is there because every peer has one.
        me = Peer(WorkerRef("supervisor", new_incarnation()), bootstrap)
        self._bootstrap = BootstrapClient(bootstrap, me, security, _ignore)
        self._specs = {spec.worker_id: spec for spec in specs}
        self._core = Supervisor(tuple(self._specs), time.monotonic())
        self._start_timeout_s = start_timeout_s
        self._lives: dict[str, _Life] = {}
        self._endings = Endings()
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
        for worker_id in self._endings.take_gone(now):
            self._gone(worker_id)
        for decision in self._core.reconcile(now):
            self._carry_out(decision)
        for life in self._lives.values():
            self._ask(life, now)
            self._kill_if_stuck(life, now)
        self._snapshot = self._see(now)
        self._wait(now)

    def _wait(self, now: float) -> None:
        """Until a life ends, a question is answered, a start is due or a process may be gone."""
        due_s = self._core.next_due_s(now)
        timeout_s = ASK_STARTING_S if due_s is None else min(due_s, ASK_STARTING_S)
        if self._endings:
            timeout_s = min(timeout_s, ASK_ENDING_S)
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
        if life.question is None and now - life.asked_at >= interval_s:
            life.question, life.asked_at = life.actor.report.remote(), now

    def _kill_if_stuck(self, life: _Life, now: float) -> None:
        """A worker with a name answers; imports that come before it may be long and keep others out."""
        if life.killed_because or life.answered_at is None:
            return
        if life.report.ref is None:
            if now - life.answered_at > self._start_timeout_s:
                life.killed_because = (
                    f"{life.report.stage} for more than start_timeout_s={self._start_timeout_s:g}"
                )
        elif life.question is not None and now - life.asked_at > STUCK_S:
            life.killed_because = f"no sign of life for {STUCK_S:.0f} s"
        if life.killed_because:
            life.killed_because += ", killed"
            ray.kill(life.actor)

    def _answered(self, worker_id: str, life: _Life) -> None:
        question, life.question = life.question, None
        try:
            report: Report = ray.get(question)
        except ray.exceptions.RayError:
            return  # the life is ending; its own future says why
        if life.answered_at is None:
            life.answered_at = time.monotonic()
        if report.ref is not None:
            self._core.named(worker_id, report.ref)
        if report.serving and not life.report.serving:
            self._core.serving(worker_id, time.monotonic())
            log.info("%s serves", report.ref)
        life.report = report

    def _over(self, worker_id: str, life: _Life) -> None:
        error, now = life.killed_because or why(life.run), time.monotonic()
        del self._lives[worker_id]
        # A worker that broke leaves its process behind; a process that died is none to kill.
        ray.kill(life.actor)
        for decision in self._core.died(worker_id, error, now):
            self._carry_out(decision)
        if life.report.process is None:  # it never answered: nobody knows of it, nor it of anybody
            self._gone(worker_id)
        else:
            self._endings.begin(worker_id, life.report.process, now)

    def _gone(self, worker_id: str) -> None:
        for decision in self._core.gone(worker_id):
            self._carry_out(decision)

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
            seen.append(
                SupervisedWorker(
                    worker_id=status.worker_id,
                    role=self._specs[status.worker_id].role.value,
                    state=status.state.value,
                    stage=_IDLE_STAGES[status.state] if life is None else life.report.stage,
                    incarnation=None if status.ref is None else status.ref.incarnation,
                    num_restarts=max(0, status.num_starts - 1),
                    retry_in_s=round(status.retry_in_s, 1),
                    last_error=status.last_error,
                )
            )
        return tuple(seen)


def _ignore(event: DirectoryEvent) -> None:
    """Who is a member is no business of a supervisor's."""

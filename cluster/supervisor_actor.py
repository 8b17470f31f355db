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
from cluster import draining_nodes, logs, ray_nodes
from cluster.actors import ACTORS, Report, WorkerSpec, spec_like
from cluster.deaths import last_words, why
from cluster.endings import Endings
from cluster.logs import LogSettings
from cluster.order_book import OrderBook
from cluster.orders import ENGINE_ROLES, Add, Engines, Order, Remove, Step
from cluster.placement import SLOTS, shortage, slot
from cluster.supervision import Supervision, seen, supervised
from cluster.supervisor import (
    Backoff,
    Decision,
    Drain,
    Evict,
    Forget,
    Kill,
    LifeState,
    Start,
    Supervisor,
)

NUM_CPUS_PER_ACTOR = 0.1  # a claim for Ray's scheduler, small enough for laptops
ASK_STARTING_S = 0.2  # how often a starting worker is asked for its stage
ASK_SERVING_S = 2.0
STUCK_S = 60.0  # a process that has answered before and then does not for so long is killed
ASK_ENDING_S = 0.05  # how often a process is looked for that should be gone
ASK_NODES_S = 0.5  # how often Ray is asked which hosts it takes away
NODE_MARGIN_S = 2.0  # of such a host's time, for an engine to say goodbye after its drain
STOP_GRACE_S = 5.0

_NUM_THREADS = 4  # of an actor: `run`, `report`, `drain` and `stop`

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
    leave_by: float | None = None  # when a draining one has had its time


class SupervisorActor:
    """Every life in `_lives` is one that the core calls starting or serving.

    `run` alone uses Ray and the core; the other methods come from other threads and touch only the
    last snapshot, the book of orders and the stop event.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        bootstrap: str,
        secret_file: str | None,
        log: LogSettings,
        start_timeout_s: float,
        drain_s: float,
    ) -> None:
        """`start_timeout_s` is how long a process may take until its worker has a name.

        `drain_s` is what an engine that leaves has for its rooms.
        """
        logs.configure(Role.SUPERVISOR, "supervisor", log)
        security = None if secret_file is None else Security.from_file(secret_file)
        # Nobody writes back to a supervisor: its endpoint is there because every peer has one.
        me = Peer(WorkerRef("supervisor", new_incarnation()), bootstrap)
        self._bootstrap = BootstrapClient(bootstrap, me, security, _ignore)
        self._specs = {spec.worker_id: spec for spec in specs}
        self._models = {spec.role: spec for spec in specs}  # what another one of its role is like
        self._core = Supervisor(tuple(self._specs), time.monotonic())
        self._start_timeout_s = start_timeout_s
        self._drain_s = drain_s
        self._lives: dict[str, _Life] = {}
        self._endings = Endings()
        self._orders = OrderBook(drain_s, start_timeout_s)
        self._look_at_nodes_at = 0.0
        self._own_labels: dict[str, str] = ray.get_runtime_context().get_node_labels()
        self._snapshot = Supervision((), tuple(specs), ())
        self._stopping = threading.Event()
        self._last_drain_s = 0.0

    def run(self) -> None:
        """Supervise until `stop`; returns when every worker has ended."""
        self._bootstrap.start()
        try:
            while not self._stopping.is_set():
                self._step()
        finally:
            self._end_all()
            self._bootstrap.stop(unregister=False)

    def look(self) -> Supervision:
        """All workers as of the last step, a fraction of a second ago."""
        return self._snapshot

    def order(self, order: Order) -> int | str:
        """Have an order carried out: its number, or why it is not."""
        return self._orders.give(order)

    def stop(self, drain_s: float = 0.0) -> None:
        """Make `run` end every worker and return; engines have `drain_s` for their rooms."""
        self._last_drain_s = drain_s
        self._stopping.set()

    # --- one step --------------------------------------------------------------------------------

    def _step(self) -> None:
        now = time.monotonic()
        for worker_id in self._endings.take_gone(now):
            self._gone(worker_id)
        if now >= self._look_at_nodes_at:
            self._look_at_nodes_at = now + ASK_NODES_S
            self._leave_draining_nodes(now)
            self._name_missing_slots(now)
        self._follow_orders(now)
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
        elif isinstance(decision, Drain):
            self._drain(self._lives[decision.worker_id], self._orders.drain_s)
        elif isinstance(decision, Kill):
            self._kill(self._lives[decision.worker_id], "not wanted any more")
        elif isinstance(decision, Forget):
            log.info("%s is no more", decision.worker_id)
            del self._specs[decision.worker_id]

    def _drain(self, life: _Life, drain_s: float) -> None:
        """Once: a life that drains keeps its first deadline."""
        if life.leave_by is None:
            log.info("%s drains for %.0f s at most", life.report.ref, drain_s)
            life.actor.drain.remote(drain_s)
            life.leave_by = time.monotonic() + drain_s + STOP_GRACE_S

    def _kill(self, life: _Life, because: str) -> None:
        life.killed_because = f"{because}, killed"
        ray.kill(life.actor)

    def _start(self, spec: WorkerSpec) -> None:
        options: dict[str, Any] = {
            "num_cpus": NUM_CPUS_PER_ACTOR,
            "max_concurrency": _NUM_THREADS,
            "max_restarts": 0,  # restarts are decided here, each one a new incarnation
            "resources": slot(spec.role, self._own_labels, ray_nodes.living()),
        }
        if options["resources"]:
            options["scheduling_strategy"] = "SPREAD"  # over the hosts that have such slots
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
                limit = f"start_timeout_s={self._start_timeout_s:g}"
                self._kill(life, f"{life.report.stage} for more than {limit}")
        elif life.question is not None and now - life.asked_at > STUCK_S:
            self._kill(life, f"no sign of life for {STUCK_S:.0f} s")
        elif life.leave_by is not None and now > life.leave_by:
            self._kill(life, f"still there {STOP_GRACE_S:.0f} s after its drain's deadline")

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
        now, words = time.monotonic(), last_words(life.run)
        del self._lives[worker_id]
        # A worker that broke leaves its process behind; a process that died is none to kill.
        ray.kill(life.actor)
        if words is not None and life.leave_by is not None:
            log.info("%s: %s", life.report.ref, words)
            self._orders.heard(worker_id, words)
            self._core.drained(worker_id, now)
        else:
            error = life.killed_because or (why(life.run) if words is None else f"ended: {words}")
            self._orders.heard(worker_id, error)
            for decision in self._core.died(worker_id, error, now):
                self._carry_out(decision)
        if life.report.process is None:  # it never answered: nobody knows of it, nor it of anybody
            self._gone(worker_id)
        else:
            self._endings.begin(worker_id, life.report.process, now)

    def _gone(self, worker_id: str) -> None:
        for decision in self._core.gone(worker_id):
            self._carry_out(decision)

    # --- what is ordered, and what Ray takes away ------------------------------------------------

    def _follow_orders(self, now: float) -> None:
        self._orders.take(self._wanted_engines(now))
        loads = {member.info.peer.ref: member.load for member in self._bootstrap.members()}
        engines = {
            status.worker_id: seen(
                status,
                self._report_of(status.worker_id),
                None if status.ref is None else loads.get(status.ref),
            )
            for status in self._core.status(now)
        }
        for step in self._orders.step(engines, now):
            self._begin(step, now)

    def _wanted_engines(self, now: float) -> Engines:
        wanted = [s.worker_id for s in self._core.status(now) if not s.leaving]
        return {role: [w for w in wanted if self._specs[w].role is role] for role in ENGINE_ROLES}

    def _begin(self, step: Step, now: float) -> None:
        worker_id = step.worker_id
        if isinstance(step, Add):
            if worker_id not in self._specs:
                model = self._models[Role(worker_id.partition("-")[0])]
                self._specs[worker_id] = spec_like(model, worker_id)
            self._core.desire(worker_id, now)
            return
        core = self._core
        decisions = core.undesire(worker_id) if isinstance(step, Remove) else core.renew(worker_id)
        for decision in decisions:
            self._carry_out(decision)

    def _leave_draining_nodes(self, now: float) -> None:
        """Drain the engines there; each begins another life wherever there is a place."""
        left_s = draining_nodes.time_left_s()
        for status in self._core.status(now) if left_s else ():
            life = self._lives.get(status.worker_id)
            if life is None or self._specs[status.worker_id].role not in ENGINE_ROLES:
                continue
            node_left_s = left_s.get(draining_nodes.node_of(life.actor))
            if node_left_s is not None and status.state is LifeState.SERVING:
                log.warning("%s: its host is taken away in %.0f s", status.ref, node_left_s)
                self._drain(life, min(self._drain_s, max(0.0, node_left_s - NODE_MARGIN_S)))
                self._core.renew(status.worker_id)

    def _name_missing_slots(self, now: float) -> None:
        """Let engines that have no process yet say which slots their role lacks."""
        waiting = {w: life for w, life in self._lives.items() if life.answered_at is None}
        wanted = self._wanted_engines(now)
        nodes = ray_nodes.living() if waiting else []
        for worker_id, life in waiting.items():
            role = self._specs[worker_id].role
            if role in SLOTS and slot(role, self._own_labels, nodes):
                words = shortage(role, len(wanted[role]), nodes)
                life.report = Report(words or "waiting for a process")

    # --- the end ---------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Stop those that serve in order, so that they say goodbye; kill the rest at once.

        The bootstrap service outlives a drain: it passes on who leaves.
        """
        serving = {w: life for w, life in self._lives.items() if life.report.serving}
        if self._last_drain_s > 0:
            engines = [life for w, life in serving.items() if self._specs[w].role in ENGINE_ROLES]
            for life in engines:
                life.actor.drain.remote(self._last_drain_s)
            for life in _wait_for_all(engines, self._last_drain_s + STOP_GRACE_S):
                log.info("%s: %s", life.report.ref, last_words(life.run))
        for life in serving.values():
            life.actor.stop.remote()
        _wait_for_all(list(serving.values()), STOP_GRACE_S)
        for life in self._lives.values():
            ray.kill(life.actor)
        self._lives.clear()

    def _see(self, now: float) -> Supervision:
        statuses = self._core.status(now)
        return Supervision(
            workers=tuple(
                supervised(s, self._specs[s.worker_id].role, self._report_of(s.worker_id))
                for s in statuses
            ),
            wanted=tuple(self._specs[s.worker_id] for s in statuses if not s.leaving),
            orders=self._orders.statuses,
        )

    def _report_of(self, worker_id: str) -> Report | None:
        life = self._lives.get(worker_id)
        return None if life is None else life.report


def _wait_for_all(lives: Sequence[_Life], timeout_s: float) -> list[_Life]:
    """Those whose lives are over by then."""
    if not lives:
        return []
    runs = [life.run for life in lives]
    over, _ = ray.wait(runs, num_returns=len(runs), timeout=timeout_s)
    return [life for life in lives if life.run in over]


def _ignore(event: DirectoryEvent) -> None:
    """Who is a member is no business of a supervisor's."""

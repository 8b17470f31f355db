"""The supervisor actor as `up` keeps it alive: started again when it dies, but not for ever.

Owns the actor; its workers end with it. Import it when Ray runs, as all that imports Ray.
"""

import logging
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bootstrap.errors import RemoteFault
from cluster.deaths import why
from cluster.orders import Order
from cluster.supervision import Supervision
from cluster.supervisor import LifeState, Supervisor
from cluster.supervisor_actor import NUM_CPUS_PER_ACTOR, SupervisorActor

WORKER_ID = "supervisor"
MAX_FAILURES = 5  # in a row: then the fault is one that no restart mends
_STATUS_TIMEOUT_S = 2.0
_ORDER_TIMEOUT_S = 15.0

log = logging.getLogger(__name__)


class SupervisorChild:
    """At most one actor. `tend` brings it back after its back-off, and gives up in the end.

    A new one is told to keep alive what its predecessor was last told to.
    """

    def __init__(self, arguments: dict[str, Any], now: float) -> None:
        """`arguments` are SupervisorActor's; the actor is on its way when this returns."""
        self._arguments = arguments
        self._core = Supervisor([WORKER_ID], now)
        self._actor: Any = None
        self._run: Any = None  # ObjectRef, done when its life is over
        self._start_if_due(now)

    def tend(self, now: float) -> Supervision | None:
        """What it sees; None when it cannot tell now. Raises RemoteFault when it dies every time."""
        self._start_if_due(now)
        if self._actor is None:
            return None
        if self.has_ended():
            self._died(why(self._run), now)
            return None
        try:
            seen: Supervision = ray.get(self._actor.look.remote(), timeout=_STATUS_TIMEOUT_S)
        except ray.exceptions.RayError:  # busy, or dead: then `run` ends
            return None
        self._arguments["specs"] = seen.wanted
        if self._core.status(now)[0].state is LifeState.STARTING:
            self._core.serving(WORKER_ID, now)
        return seen

    def order(self, order: Order) -> int | str:
        """Have an order carried out: its number, or why it is not. On any thread."""
        actor = self._actor
        if actor is None:
            return "the supervisor is being started again"
        try:
            answer: int | str = ray.get(actor.order.remote(order), timeout=_ORDER_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            return f"the supervisor does not answer: {type(error).__name__}"
        return answer

    def ask_to_stop(self, drain_s: float = 0.0) -> None:
        """Let it end its workers, whose requests have `drain_s`."""
        if self._actor is not None:
            self._actor.stop.remote(drain_s)

    def has_ended(self) -> bool:
        """Whether no life is left."""
        return self._actor is None or bool(ray.wait([self._run], timeout=0)[0])

    def _start_if_due(self, now: float) -> None:
        if not self._core.reconcile(now):
            return
        here = ray.get_runtime_context().get_node_id()
        make = ray.remote(
            num_cpus=NUM_CPUS_PER_ACTOR,
            max_concurrency=4,  # `run`, `look`, `order`, `stop`
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        )(SupervisorActor)
        self._actor = make.remote(**self._arguments)
        self._run = self._actor.run.remote()

    def _died(self, error: str, now: float) -> None:
        ray.kill(self._actor)  # one that broke leaves its process behind
        self._actor = None
        self._core.died(WORKER_ID, error, now)
        self._core.gone(WORKER_ID)
        (status,) = self._core.status(now)
        log.error(
            "the supervisor died and its workers with it, starting again in %.1f s: %s",
            status.retry_in_s,
            error,
        )
        if status.num_failures >= MAX_FAILURES:
            raise RemoteFault(f"the supervisor died {MAX_FAILURES} times in a row: {error}")

"""Which calls are let in, and what those that are not are told: when to come again.

Pure. Owns the queue and what is measured to foretell its waits.
"""

import math
from collections.abc import Sequence

from cluster.balancer.drain_rate import DrainRate, ExpectedOutput
from cluster.balancer.instructions import Failure, FailureKind
from cluster.balancer.queue import FairQueue, QueueBounds, Waiting
from cluster.balancer.request import Request, RequestSpec, RequestState

MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 60


class Admission:
    """`num_done` are tokens computed or delivered since the last `measure`, for others to add to."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queue = FairQueue(bounds)
        self.num_done = 0
        self._drain_rate = DrainRate()
        self._expected = ExpectedOutput()

    def refusal(self, specs: Sequence[RequestSpec], timeout_s: float) -> Failure | None:
        """Why a call whose requests must wait is not let in, or None.

        Either there is no place for it, or it would wait for longer than it may take.
        """
        tenant = specs[0].tenant
        num_tokens = sum(len(spec.prompt_token_ids) for spec in specs)
        why = self.queue.refusal(tenant, len(specs), num_tokens)
        wait_s = self._wait_s(tenant)
        if (
            why is None
            and wait_s is not None
            and wait_s > timeout_s
            and self._drain_rate.is_settled
        ):
            why = "The wait would be longer than a request may take."
        if why is None:
            return None
        return Failure(FailureKind.OVERLOADED, why, retry_after_s=self.retry_after_s(tenant))

    def refusal_of_any(self, tenant: str) -> Failure | None:
        """Why not even the smallest request of `tenant` may wait, or None."""
        why = self.queue.refusal(tenant, 1, 1)
        if why is None:
            return None
        return Failure(FailureKind.OVERLOADED, why, retry_after_s=self.retry_after_s(tenant))

    def retry_after_s(self, tenant: str) -> int:
        """Whole seconds until what waits now will have drained, as far as was measured."""
        wait_s = math.ceil(self._wait_s(tenant) or 0.0)
        return max(MIN_RETRY_AFTER_S, min(MAX_RETRY_AFTER_S, wait_s))

    def add(self, key: int, spec: RequestSpec, *, is_large: bool = False) -> None:
        """A new request waits."""
        num_prompt = len(spec.prompt_token_ids)
        cost = num_prompt + self._expected.of(spec.sampling.max_tokens)
        self.queue.add(Waiting(key, spec.tenant, num_prompt, cost, is_large))

    def end(self, key: int, request: Request) -> None:
        """The request has its outcome. A repeat is a no-op."""
        if request.state is RequestState.FINISHED:
            self._expected.ended(len(request.delivered))
        self.queue.end(key, len(request.spec.prompt_token_ids) + len(request.delivered))

    def num_expected(self, request: Request) -> int:
        """Output tokens that the next attempt will probably come to."""
        return self._expected.of(request.size.num_output)

    def measure(self, now: float, *, can_serve: bool) -> None:
        """Note what was done until now; while nobody can serve nothing is measured."""
        waiting = can_serve and len(self.queue) > 0
        self._drain_rate.observe(self.num_done, now, waiting=waiting)
        self.num_done = 0

    def _wait_s(self, tenant: str) -> float | None:
        rate = self._drain_rate.tokens_per_s
        return None if rate is None else self.queue.cost_ahead(tenant) / rate

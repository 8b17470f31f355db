"""When each request came, spoke and ended, as metrics."""

from dataclasses import dataclass

from bootstrap.identity import Role
from cluster.balancer.instructions import Measured
from cluster.balancer.metrics import Metrics
from cluster.balancer.request import RequestSpec


@dataclass(slots=True)
class _Timeline:
    arrived_at: float
    token_at: float | None = None


class Timelines:
    """Each request is in from `began` to `ended`; what is unknown (a probe) counts nowhere."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._timelines: dict[int, _Timeline] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._timelines

    def began(self, key: int, spec: RequestSpec, now: float) -> None:
        """A request was taken."""
        self._timelines[key] = _Timeline(now)
        self._metrics.prompt_tokens.inc(len(spec.prompt_token_ids))

    def tokens(self, key: int, num_tokens: int, now: float) -> None:
        """Tokens came, all at once."""
        timeline = self._timelines.get(key)
        if timeline is None or num_tokens == 0:
            return
        self._metrics.generated_tokens.inc(num_tokens)
        if timeline.token_at is None:
            self._metrics.first_token.observe(now - timeline.arrived_at)
        else:
            gap_s = (now - timeline.token_at) / num_tokens
            for _ in range(num_tokens):
                self._metrics.inter_token.observe(gap_s)
        timeline.token_at = now

    def measured(self, key: int, what: Measured) -> None:
        """A leg told what it measured."""
        if key not in self._timelines:
            return
        stats = what.stats
        if what.role is Role.PREFILL:
            self._metrics.queued.observe(stats.queue_s)
            self._metrics.prefill.observe(stats.compute_s)
        else:
            self._metrics.decode.observe(stats.compute_s)
        self._metrics.cached_tokens.labels(what.role.value).inc(stats.num_cached_tokens)

    def retried(self, key: int, reason: str) -> None:
        """An attempt broke and another follows."""
        if key in self._timelines:
            self._metrics.retries.labels(reason).inc()

    def ended(self, key: int, outcome: str, now: float) -> None:
        """The outcome is decided; the first one counts."""
        timeline = self._timelines.pop(key, None)
        if timeline is not None:
            self._metrics.requests.labels(outcome).inc()
            self._metrics.whole.observe(now - timeline.arrived_at)

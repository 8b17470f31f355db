"""When each request came, spoke and ended: as metrics, and as one line of the log at its end."""

import logging
from dataclasses import dataclass

from bootstrap.identity import Role
from cluster.balancer.instructions import Measured
from cluster.balancer.metrics import Metrics
from cluster.balancer.request import RequestSpec
from cluster.balancer.stats import RequestStats

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Timeline:
    name: str
    stats: RequestStats


class Timelines:
    """Each request is in from `began` to `ended`; what is unknown (a probe) counts nowhere.

    Keeps the statistics that it was given at `began` up to date.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._timelines: dict[int, _Timeline] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._timelines

    def began(self, key: int, spec: RequestSpec, stats: RequestStats) -> None:
        """A request was taken."""
        self._timelines[key] = _Timeline(spec.request_id, stats)
        self._metrics.prompt_tokens.inc(len(spec.prompt_token_ids))

    def tokens(self, key: int, num_tokens: int, now: float) -> None:
        """Tokens came, all at once."""
        timeline = self._timelines.get(key)
        if timeline is None or num_tokens == 0:
            return
        stats = timeline.stats
        self._metrics.generated_tokens.inc(num_tokens)
        if stats.last_token_at is None:
            self._metrics.first_token.observe(now - stats.arrived_at)
        else:
            gap_s = (now - stats.last_token_at) / num_tokens
            for _ in range(num_tokens):
                self._metrics.inter_token.observe(gap_s)
        stats.tokens(num_tokens, now)

    def measured(self, key: int, what: Measured) -> None:
        """A leg told what it measured."""
        timeline = self._timelines.get(key)
        if timeline is None:
            return
        timeline.stats.measured(what.role, what.stats)
        if what.role is Role.PREFILL:
            self._metrics.queued.observe(what.stats.queue_s)
            self._metrics.prefill.observe(what.stats.compute_s)
        else:
            self._metrics.decode.observe(what.stats.compute_s)
        self._metrics.cached_tokens.labels(what.role.value).inc(what.stats.num_cached_tokens)

    def retried(self, key: int, reason: str) -> None:
        """An attempt broke and another follows."""
        timeline = self._timelines.get(key)
        if timeline is not None:
            timeline.stats.num_attempts += 1
            self._metrics.retries.labels(reason).inc()

    def ended(self, key: int, outcome: str, now: float) -> None:
        """The outcome is decided; the first one counts."""
        timeline = self._timelines.pop(key, None)
        if timeline is not None:
            timeline.stats.ended_at = now
            self._metrics.requests.labels(outcome).inc()
            self._metrics.whole.observe(now - timeline.stats.arrived_at)
            log.info("request %s ended: %s %s", timeline.name, outcome, timeline.stats.line)

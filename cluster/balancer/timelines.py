"""When each request came, spoke and ended: as metrics, and as one line of the log at its end."""

import logging
from dataclasses import dataclass

from bootstrap.identity import Role
from bootstrap.sampling import FinishReason
from cluster.balancer.instructions import Measured
from cluster.balancer.metrics import Metrics
from cluster.balancer.pulse import Pulse
from cluster.balancer.request import RequestSpec
from cluster.balancer.stats import RequestStats

_FINISHED = frozenset(reason.value for reason in FinishReason)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Timeline:
    name: str
    num_prompt_tokens: int
    stats: RequestStats


class Timelines:
    """Each request is in from `began` to `ended`; what is unknown (a probe) counts nowhere.

    Keeps the statistics that it was given at `began` up to date.
    """

    def __init__(self, metrics: Metrics, pulse: Pulse) -> None:
        self._pulse = pulse
        self._metrics = metrics
        self._timelines: dict[int, _Timeline] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._timelines

    def began(self, key: int, spec: RequestSpec, stats: RequestStats) -> None:
        """A request was taken."""
        self._timelines[key] = _Timeline(spec.request_id, len(spec.prompt_token_ids), stats)
        self._metrics.prompt_tokens.inc(len(spec.prompt_token_ids))
        self._metrics.prompt_lengths.observe(len(spec.prompt_token_ids))

    def tokens(self, key: int, num_tokens: int, now: float) -> None:
        """Tokens came, all at once."""
        timeline = self._timelines.get(key)
        if timeline is None or num_tokens == 0:
            return
        stats = timeline.stats
        self._metrics.generated_tokens.inc(num_tokens)
        self._pulse.tokens(num_tokens, now)
        if stats.last_token_at is None:
            self._metrics.first_token.observe(now - stats.arrived_at)
            self._pulse.first_token(now - stats.arrived_at, now)
        else:
            gap_s = (now - stats.last_token_at) / num_tokens
            self._pulse.gap(gap_s, now)
            for _ in range(num_tokens):
                self._metrics.inter_token.observe(gap_s)
        handed_off = stats.second_token_at is not None
        stats.tokens(num_tokens, now)
        if not handed_off and stats.handoff_s is not None:
            self._metrics.handoff_gap.observe(stats.handoff_s)

    def measured(self, key: int, what: Measured) -> None:
        """A leg told what it measured."""
        timeline = self._timelines.get(key)
        if timeline is None:
            return
        timeline.stats.measured(what.role, what.stats)
        metrics, stats = self._metrics, what.stats
        if what.role is Role.PREFILL:
            metrics.queued.observe(stats.queue_s)
            metrics.prefill.observe(stats.compute_s)
            metrics.prefix_queries.inc(timeline.num_prompt_tokens)
            metrics.prefix_hits.inc(stats.num_cached_tokens)
        else:
            metrics.admission.observe(stats.queue_s)
            metrics.transfer.observe(stats.transfer_s)
            metrics.transfer_sizes.observe(stats.transfer_bytes)
            metrics.decode.observe(stats.compute_s)
            metrics.decode_prefix_hits.inc(stats.num_cached_tokens)

    def dispatched(self, key: int, prefill: str, decode: str) -> None:
        """An attempt went to a pair of engines, named by their worker ids."""
        if key in self._timelines:
            self._metrics.pair_requests.labels(prefill, decode).inc()

    def retried(self, key: int, reason: str) -> None:
        """An attempt broke and another follows."""
        timeline = self._timelines.get(key)
        if timeline is not None:
            timeline.stats.num_attempts += 1
            self._metrics.retries.labels(reason).inc()
            if timeline.stats.num_tokens:
                self._metrics.continuations.inc()

    def ended(self, key: int, outcome: str, now: float) -> None:
        """The outcome is decided; the first one counts."""
        timeline = self._timelines.pop(key, None)
        if timeline is not None:
            timeline.stats.ended_at = now
            self._metrics.requests.labels(outcome).inc()
            if outcome in _FINISHED:
                self._metrics.succeeded(outcome)
            self._metrics.whole.observe(now - timeline.stats.arrived_at)
            self._metrics.output_lengths.observe(timeline.stats.num_tokens)
            text, facts = "request %s ended: %s %s", {"request_id": timeline.name}
            log.info(text, timeline.name, outcome, timeline.stats.line, extra=facts)

"""What the balancer counts, for Prometheus. Names follow vLLM's where they mean the same."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Counts(Collector):
    """Counters that others keep, read when somebody asks."""

    def __init__(self, name: str, text: str, read: Callable[[], Mapping[str, int]]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=["kind"])
        for kind, value in sorted(self._read().items()):
            family.add_metric([kind], value)
        yield family


class Metrics:
    """One registry per balancer, so several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._declare_counts()
        self._declare_times()

    def _declare_counts(self) -> None:
        self.requests = self._counter(
            "requests", "Requests (one per sample of each prompt) by outcome", "outcome"
        )
        self.retries = self._counter(
            "request_retries", "Attempts that broke and were followed by another", "reason"
        )
        self.cached_tokens = self._counter(
            "prefix_cache_hit_tokens", "Prompt tokens found in an engine's prefix cache", "role"
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests taken")
        self.generated_tokens = self._counter("generation_tokens", "Output tokens delivered")
        self.running = self._gauge("num_requests_running", "Requests without an outcome")
        self.waiting = self._gauge("num_requests_waiting", "Requests for which no pair is found")
        self.ready = self._gauge("ready", "1 when a recent request passed over a pair")

    def _declare_times(self) -> None:
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token"
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a request", _TOKEN_S
        )
        self.whole = self._histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its outcome"
        )
        self.queued = self._histogram("request_queue_time_seconds", "In the prefill engine's queue")
        self.prefill = self._histogram(
            "request_prefill_time_seconds", "From the first chunk's start to the bootstrap token"
        )
        self.decode = self._histogram(
            "request_decode_time_seconds", "From the handoff's commit to the last token"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pdserve:{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"pdserve:{name}", text, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...] = _LATENCY_S
    ) -> Histogram:
        return Histogram(f"pdserve:{name}", text, buckets=buckets, registry=self.registry)

    def export(self, name: str, text: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Show counters that are kept elsewhere, one label value `kind` each."""
        self.registry.register(_Counts(f"pdserve:{name}", text, read))

    def exposition(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self.registry)

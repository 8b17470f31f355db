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
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "pdserve:requests",
            "Requests (one per sample of each prompt) by outcome",
            ["outcome"],
            registry=registry,
        )
        self.running = Gauge(
            "pdserve:num_requests_running", "Requests without an outcome", registry=registry
        )
        self.waiting = Gauge(
            "pdserve:num_requests_waiting", "Requests for which no pair is found", registry=registry
        )
        self.first_token = Histogram(
            "pdserve:time_to_first_token_seconds",
            "From a request's arrival to its first token",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.inter_token = Histogram(
            "pdserve:inter_token_latency_seconds",
            "Between two tokens of a request",
            buckets=_TOKEN_S,
            registry=registry,
        )
        self.whole = Histogram(
            "pdserve:e2e_request_latency_seconds",
            "From a request's arrival to its outcome",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.queued = Histogram(
            "pdserve:request_queue_time_seconds",
            "In the prefill engine's queue",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.prefill = Histogram(
            "pdserve:request_prefill_time_seconds",
            "From the first chunk's start to the bootstrap token, in the prefill engine",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.decode = Histogram(
            "pdserve:request_decode_time_seconds",
            "From the handoff's commit to the last token, in the decode engine",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.cached_tokens = Counter(
            "pdserve:prefix_cache_hit_tokens",
            "Prompt tokens that an engine found in its prefix cache",
            ["role"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "pdserve:prompt_tokens", "Prompt tokens of requests taken", registry=registry
        )
        self.generated_tokens = Counter(
            "pdserve:generation_tokens", "Output tokens delivered", registry=registry
        )
        self.retries = Counter(
            "pdserve:request_retries",
            "Attempts that broke and were followed by another",
            ["reason"],
            registry=registry,
        )
        self.ready = Gauge(
            "pdserve:ready", "1 when a recent request passed over a pair", registry=registry
        )

    def export(self, name: str, text: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Show counters that are kept elsewhere, one label value `kind` each."""
        self.registry.register(_Counts(f"pdserve:{name}", text, read))

    def exposition(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self.registry)

"""What the balancer counts, for Prometheus.

Where a figure means what vLLM's means, it has vLLM's whole name and its `model_name` label, so that
dashboards made for vLLM work; every other name begins with `pdserve:`.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TOKENS = tuple(float(1 << power) for power in range(18))
_BYTES = tuple(float(1 << power) for power in range(16, 37, 2))
_MODEL = "model_name"


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

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self._declare_counts()
        self._declare_sizes()
        self._declare_times()
        self._declare_handoffs()

    def _declare_counts(self) -> None:
        self.requests = self._own_counter(
            "requests", "Requests (one per sample of each prompt) by outcome", "outcome"
        )
        self.retries = self._own_counter(
            "request_retries", "Attempts that broke and were followed by another", "reason"
        )
        self.continuations = self._own_counter(
            "continuations", "Of these, attempts that went on after tokens had been delivered"
        )
        self.pair_requests = self._own_counter(
            "pair_requests", "Attempts dispatched to a pair of engines", "prefill", "decode"
        )
        self.successes = Counter(
            "vllm:request_success",
            "Requests that ended well, by finish reason",
            (_MODEL, "finished_reason"),
            registry=self.registry,
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests taken")
        self.generated_tokens = self._counter("generation_tokens", "Output tokens delivered")
        self.prefix_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in prefill engines' prefix caches"
        )
        self.prefix_hits = self._counter("prefix_cache_hits", "Of these, tokens found there")
        self.decode_prefix_hits = self._own_counter(
            "decode_prefix_cache_hits", "Prompt tokens that needed no transfer"
        )
        self.running = self._gauge("num_requests_running", "Requests that a pair of engines has")
        self.waiting = self._gauge("num_requests_waiting", "Requests that no pair of engines has")
        self.ready = Gauge(
            "pdserve:ready", "1 when a recent request passed over a pair", registry=self.registry
        )

    def _declare_sizes(self) -> None:
        self.prompt_lengths = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request", _TOKENS
        )
        self.output_lengths = self._histogram(
            "request_generation_tokens", "Output tokens of a request that ended", _TOKENS
        )

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

    def _declare_handoffs(self) -> None:
        self.admission = self._own_histogram(
            "decode_admission_wait_seconds", "From a dispatch to decode to pages reserved for it"
        )
        self.transfer = self._own_histogram(
            "transfer_seconds", "While at least one write of a request's pages was under way"
        )
        self.transfer_sizes = self._own_histogram(
            "transfer_bytes", "Bytes of KV that one request moved", _BYTES
        )
        self.handoff_gap = self._own_histogram(
            "handoff_gap_seconds",
            "Between the token of prefill and the first one of decode, as the client sees it",
        )

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, (_MODEL,), registry=self.registry)
        return counter.labels(self._model_name)

    def _own_counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pdserve:{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", text, (_MODEL,), registry=self.registry)
        return gauge.labels(self._model_name)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...] = _LATENCY_S
    ) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", text, (_MODEL,), buckets=buckets, registry=self.registry
        )
        return histogram.labels(self._model_name)

    def _own_histogram(
        self, name: str, text: str, buckets: tuple[float, ...] = _LATENCY_S
    ) -> Histogram:
        return Histogram(f"pdserve:{name}", text, buckets=buckets, registry=self.registry)

    def succeeded(self, finish_reason: str) -> None:
        """A request ended well."""
        self.successes.labels(self._model_name, finish_reason).inc()

    def export(self, name: str, text: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Show counters that are kept elsewhere, one label value `kind` each."""
        self.registry.register(_Counts(f"pdserve:{name}", text, read))

    def exposition(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self.registry)

"""What the engines say of themselves in their heartbeats, for Prometheus; read when somebody asks.

Labelled by worker and role; who is no member any more is not shown.
"""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bootstrap.membership import Member, WorkerState

_LABELS = ("worker", "role")
_IDLE = ("free", "cached")  # pages that a new request may take


class EngineMetrics(Collector):
    """One sample per member and figure."""

    def __init__(self, model_name: str, members: Callable[[], Iterable[Member]]) -> None:
        self._model_name = model_name
        self._members = members

    def collect(self) -> Iterable[Metric]:
        """Everything, as of the members' latest heartbeats."""
        ready = _gauge("engine_ready", "1 while the engine takes new requests, 0 while it drains")
        queued = _gauge("engine_requests_waiting", "Requests that wait in the engine")
        running = _gauge("engine_requests_running", "Requests in the engine's steps")
        pages = _gauge("kv_pages", "Pages by the ledger's state", "state")
        orphans = _gauge("orphan_pages", "Pages held for rooms that the engine does not know")
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc",
            "Share of an engine's pages that a new request may not take, 1 is all",
            labels=["model_name", *_LABELS],
        )
        preemptions = CounterMetricFamily(
            "vllm:num_preemptions",
            "Requests whose pages were taken away for a while",
            labels=["model_name", *_LABELS],
        )
        events = CounterMetricFamily(
            "pdserve:engine_events",
            "What an engine counts: messages by what became of them, writes, and more",
            labels=[*_LABELS, "kind"],
        )
        for member in self._members():
            load, who = member.load, [member.info.peer.ref.worker_id, member.info.role.value]
            ready.add_metric(who, float(load.state is WorkerState.READY))
            queued.add_metric(who, load.num_queued)
            running.add_metric(who, load.num_running)
            for state, num_pages in load.pages.items():
                pages.add_metric([*who, state], num_pages)
            usage.add_metric([self._model_name, *who], _usage(load.pages))
            for kind, count in load.counters.items():
                if kind == "retractions":
                    preemptions.add_metric([self._model_name, *who], count)
                elif kind == "orphan_pages":
                    orphans.add_metric(who, count)
                else:
                    events.add_metric([*who, kind], count)
        return [ready, queued, running, pages, orphans, usage, preemptions, events]


def _gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pdserve:{name}", text, labels=[*_LABELS, *more])


def _usage(pages: dict[str, int]) -> float:
    num_pages = sum(pages.values())
    idle = sum(pages.get(state, 0) for state in _IDLE)
    return (num_pages - idle) / num_pages if num_pages else 0.0

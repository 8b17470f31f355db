"""Writes the Grafana dashboard from the table below: `python helm/generate_dashboard.py`.

A panel is a title, a unit and its queries; where it stands follows from the order. Each query is summed
over balancers, of which each counts its own requests, while engines' own figures are the same at every
balancer, so that their maximum is taken.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "pdserve" / "files" / "dashboard.json"
NUM_COLUMNS, WIDTH, HEIGHT = 3, 8, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Queries = tuple[tuple[str, str], ...]  # (PromQL, legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph of a row."""

    title: str
    unit: str
    queries: Queries


def quantiles(name: str) -> Queries:
    """The 50th, 95th and 99th percentile of a histogram."""
    return tuple(
        (
            f"histogram_quantile({share}, sum by (le) (rate({name}_bucket[$__rate_interval])))",
            f"p{round(share * 100)}",
        )
        for share in (0.5, 0.95, 0.99)
    )


def rate(name: str, *by: str, legend: str = "") -> Queries:
    """A counter's rate, split by labels."""
    labels = f" by ({', '.join(by)})" if by else ""
    shown = legend or " ".join(f"{{{{{label}}}}}" for label in by)
    return ((f"sum{labels} (rate({name}[$__rate_interval]))", shown),)


def per_engine(name: str, *more: str) -> Queries:
    """An engine's own figure."""
    labels = ("worker", *more)
    shown = " ".join(f"{{{{{label}}}}}" for label in labels)
    return ((f"max by ({', '.join(labels)}) ({name})", shown),)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What clients see",
        (
            Panel("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
            Panel("Between two tokens", "s", quantiles("vllm:inter_token_latency_seconds")),
            Panel("Whole request", "s", quantiles("vllm:e2e_request_latency_seconds")),
            Panel("Requests by outcome", "reqps", rate("pdserve:requests_total", "outcome")),
            Panel(
                "Tokens",
                "short",
                rate("vllm:prompt_tokens_total", legend="prompt")
                + rate("vllm:generation_tokens_total", legend="output"),
            ),
            Panel(
                "Requests now",
                "short",
                (
                    ("sum(vllm:num_requests_running)", "running"),
                    ("sum(vllm:num_requests_waiting)", "waiting"),
                ),
            ),
        ),
    ),
    (
        "Where the time goes",
        (
            Panel("In prefill's queue", "s", quantiles("vllm:request_queue_time_seconds")),
            Panel("Prefill", "s", quantiles("vllm:request_prefill_time_seconds")),
            Panel("Decode", "s", quantiles("vllm:request_decode_time_seconds")),
            Panel(
                "Wait for decode's pages", "s", quantiles("pdserve:decode_admission_wait_seconds")
            ),
            Panel("Transfer", "s", quantiles("pdserve:transfer_seconds")),
            Panel("Handoff gap", "s", quantiles("pdserve:handoff_gap_seconds")),
        ),
    ),
    (
        "Engines",
        (
            Panel("KV cache used", "percentunit", per_engine("vllm:kv_cache_usage_perc")),
            Panel("Pages by state", "short", per_engine("pdserve:kv_pages", "state")),
            Panel("Takes new requests", "short", per_engine("pdserve:engine_ready")),
            Panel("Running", "short", per_engine("pdserve:engine_requests_running")),
            Panel("Waiting", "short", per_engine("pdserve:engine_requests_waiting")),
            Panel(
                "Attempts per pair",
                "reqps",
                rate("pdserve:pair_requests_total", "prefill", "decode"),
            ),
        ),
    ),
    (
        "What went wrong, and what it cost",
        (
            Panel("Attempts that broke", "reqps", rate("pdserve:request_retries_total", "reason")),
            Panel("Streams continued elsewhere", "reqps", rate("pdserve:continuations_total")),
            Panel("Retractions", "reqps", rate("vllm:num_preemptions_total", "worker")),
            Panel("Orphan pages", "short", per_engine("pdserve:orphan_pages")),
            Panel("Events in engines", "ops", rate("pdserve:engine_events_total", "kind")),
            Panel("Messages at balancers", "ops", rate("pdserve:messages_total", "kind")),
        ),
    ),
    (
        "Caches and sizes",
        (
            Panel(
                "Prefix cache hits",
                "percentunit",
                (
                    (
                        "sum(rate(vllm:prefix_cache_hits_total[$__rate_interval]))"
                        " / sum(rate(vllm:prefix_cache_queries_total[$__rate_interval]))",
                        "prefill",
                    ),
                ),
            ),
            Panel("Prompt tokens", "short", quantiles("vllm:request_prompt_tokens")),
            Panel("Bytes moved", "Bps", rate("pdserve:transfer_bytes_sum", legend="KV")),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole of it, as Grafana imports it."""
    return {
        "title": "pdserve",
        "uid": "pdserve",
        "tags": ["pdserve", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": _panels(),
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        place = {"x": 0, "y": top, "w": NUM_COLUMNS * WIDTH, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place})
        top += 1
        for index, panel in enumerate(row):
            line, column = divmod(index, NUM_COLUMNS)
            place = {"x": column * WIDTH, "y": top + line * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_graph(len(panels) + 1, panel, place))
        top += -(-len(row) // NUM_COLUMNS) * HEIGHT
    return panels


def _graph(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expr,
                "legendFormat": name,
            }
            for index, (expr, name) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """What the file holds."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())

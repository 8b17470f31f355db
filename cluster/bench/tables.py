"""The terminal's view of a load test's figures."""

from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bench.summary import COLUMNS, METRICS

_TITLES = {**METRICS, "itl": "gap between events"}
_LATE_S = 0.05  # from here on the client itself is worth a word


def print_summary(console: Console, facts: dict[str, Any]) -> None:
    """What `summarize` found, with the first reasons of failures."""
    requests, per_s = facts["requests"], facts["per_s"]
    console.print(f"{facts['model']} at {facts['url']}")
    console.print(
        f"{requests['completed']} of {requests['offered']} requests in {facts['elapsed_s']:.1f} s:"
        f" {per_s['requests']:.2f} requests/s, {per_s['prompt_tokens']:.0f} prompt and"
        f" {per_s['output_tokens']:.0f} output tokens/s"
    )
    console.print(times_table(facts))
    if facts["objectives_s"]:
        limits = ", ".join(f"{k} <= {_ms(v)} ms" for k, v in facts["objectives_s"].items())
        console.print(
            f"goodput: {facts['goodput']:.1%} of offered requests with {limits}"
            f" ({per_s['good_requests']:.2f} requests/s)"
        )
    for reason, count in requests["failures"].items():
        console.print(f"[red]failed[/red] {count}: ", end="")
        console.print(reason, markup=False)
    late = facts["client_late_s"].get("p99", 0.0)
    if late > _LATE_S:
        console.print(
            f"[yellow]this client was late[/yellow]: p99 of sending is {_ms(late)} ms after the time"
            " due; run it on another machine or lower the rate"
        )


def times_table(facts: dict[str, Any]) -> Table:
    """One row per metric, in milliseconds."""
    table = Table(box=None, pad_edge=False)
    table.add_column("ms")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for name, figures in facts["times_s"].items():
        if figures:
            table.add_row(f"{name} ({_TITLES[name]})", *(_ms(figures[c]) for c in COLUMNS))
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"

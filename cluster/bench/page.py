"""The HTML report: one self-contained page, its plots drawn as SVG. Pure."""

import html
import json
from collections.abc import Sequence
from typing import Any

from cluster.bench.client import Seen
from cluster.bench.summary import COLUMNS, METRICS

_WIDTH, _HEIGHT = 520, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 34
_MAX_POINTS = 2000  # of one plot

Points = list[tuple[float, float]]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d5dae1; --mark: #2563c9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --paper: #14171c; --line: #3a4150; --mark: #6ea8ff; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1120px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem .2rem 0; text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { display: inline-block; margin: 1rem 1rem 0 0; max-width: 100%; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 11px; }
.axis { stroke: var(--line); } .plot { stroke: var(--mark); fill: none; stroke-width: 1.6; }
.dot { fill: var(--mark); opacity: .55; } .limit { stroke: #d14343; stroke-dasharray: 4 3; }
pre { white-space: pre-wrap; border-top: 1px solid var(--line); padding-top: 1rem; }
"""


def page(facts: dict[str, Any], seen: Sequence[Seen]) -> str:
    """The report of `summarize`'s `facts` and of every request."""
    whole = [one for one in seen if one.ok]
    limits = facts["objectives_s"]
    plots = [
        _plot(f"{METRICS[name]}, share of requests", "ms", cumulative(values), limits.get(name))
        for name, values in (
            ("ttft", [one.ttft_s for one in whole]),
            ("tpot", [one.tpot_s for one in whole]),
            ("e2e", [one.e2e_s for one in whole]),
        )
    ]
    ttft = [(one.due_at, one.ttft_s * 1000) for one in whole]
    plots.append(_plot("time to first token (ms) over the test", "s", ttft, dots=True))
    plots.append(_plot("requests in flight over the test", "s", in_flight(seen)))
    requests, per_s = facts["requests"], facts["per_s"]
    lines = [
        f"{requests['completed']} of {requests['offered']} requests in {facts['elapsed_s']:.1f} s",
        f"{per_s['requests']:.2f} requests/s, {per_s['output_tokens']:.0f} output tokens/s",
    ]
    if limits:
        lines.append(f"goodput {facts['goodput']:.1%} of offered requests")
    lines += [f"failed {count}: {reason}" for reason, count in requests["failures"].items()]
    title = f"{facts['model']} at {facts['url']}"
    settings = json.dumps(facts["settings"], indent=1)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>"
        + "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        + _table(facts)
        + "".join(plots)
        + f"<pre>{html.escape(settings)}</pre></html>\n"
    )


def cumulative(values_s: Sequence[float]) -> Points:
    """(milliseconds, share of the values up to there)."""
    ordered = sorted(values_s)
    return [(value * 1000, (i + 1) / len(ordered)) for i, value in enumerate(ordered)]


def in_flight(seen: Sequence[Seen]) -> Points:
    """(time, requests sent and not ended), as steps."""
    changes = sorted([(one.sent_at, 1) for one in seen] + [(one.ended_at, -1) for one in seen])
    points: Points = []
    level = 0
    for at, change in changes:
        points += [(at, float(level)), (at, float(level + change))]
        level += change
    return points


def _table(facts: dict[str, Any]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("ms", *COLUMNS))
    rows = "".join(
        f"<tr><td>{name}</td>" + "".join(f"<td>{f[c] * 1000:.1f}</td>" for c in COLUMNS) + "</tr>"
        for name, f in facts["times_s"].items()
        if f
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _plot(
    title: str, unit: str, points: Points, limit_s: float | None = None, dots: bool = False
) -> str:
    points = points[:: max(1, len(points) // _MAX_POINTS)]
    most_x = max((x for x, _ in points), default=0.0) or 1.0
    most_y = max((y for _, y in points), default=0.0) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + x / most_x * width, _TOP + (1 - y / most_y) * height

    parts = [_axes(unit, most_x, most_y)]
    if dots:
        marks = (at(x, y) for x, y in points)
        parts += [f"<circle class='dot' cx='{x:.1f}' cy='{y:.1f}' r='2.5'/>" for x, y in marks]
    else:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(x, y) for x, y in points))
        parts.append(f"<polyline class='plot' points='{line}'/>")
    if limit_s is not None and limit_s * 1000 <= most_x:
        x, top = at(limit_s * 1000, most_y)
        foot = _HEIGHT - _BOTTOM
        parts.append(f"<line class='limit' x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{foot}'/>")
    name = html.escape(title)
    return (
        f"<figure><figcaption>{name}</figcaption><svg role='img' aria-label='{name}'"
        f" viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}'>{''.join(parts)}</svg></figure>"
    )


def _axes(unit: str, most_x: float, most_y: float) -> str:
    foot, end = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    return (
        f"<line class='axis' x1='{_LEFT}' x2='{end}' y1='{foot}' y2='{foot}'/>"
        f"<line class='axis' x1='{_LEFT}' x2='{_LEFT}' y1='{_TOP}' y2='{foot}'/>"
        f"<text x='{_LEFT}' y='{foot + 16}'>0</text>"
        f"<text x='{end}' y='{foot + 16}' text-anchor='end'>{most_x:.4g} {unit}</text>"
        f"<text x='{_LEFT - 6}' y='{foot}' text-anchor='end'>0</text>"
        f"<text x='{_LEFT - 6}' y='{_TOP + 9}' text-anchor='end'>{most_y:.4g}</text>"
    )

"""`pdserve top`: the status page in the terminal, live until Ctrl-C.

Owns the screen. The facts are the balancer's `/debug/live`, one event a second.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bootstrap.errors import RemoteFault
from cluster.endpoint import admin_header, choose_url

MAX_SHOWN = 12
_AGAIN_S = 1.0
_TIMEOUT = httpx.Timeout(5.0, connect=5.0)  # an event comes each second
_BAR = 24
_SHORT = 6  # digits of an incarnation
_STYLES = {
    "in_use": "blue",
    "leased": "magenta",
    "reserved": "yellow",
    "writing": "dark_orange",
    "quarantined": "red",
    "cached": "cyan",
    "free": "bright_black",
}

Facts = Mapping[str, Any]


def top(url: str | None, once: bool) -> int:
    """Show the cluster until Ctrl-C, or `once`; raises RemoteFault when it cannot begin."""
    base_url = choose_url(url)
    console = Console()
    with httpx.Client(base_url=base_url, timeout=_TIMEOUT) as client:
        if once or not console.is_terminal:
            console.print(screen(base_url, next(events(client))))
            return 0
        first = next(events(client))
        with Live(screen(base_url, first), console=console, screen=True) as live:
            try:
                _follow(client, lambda shown: live.update(shown, refresh=True))
            except KeyboardInterrupt:
                return 0
    return 0


def events(client: httpx.Client) -> Iterator[Facts]:
    """What the balancer tells, each second; raises RemoteFault when it does not or ends."""
    try:
        # Asked for each time: a new `up` may have another key.
        headers = admin_header(str(client.base_url).rstrip("/"))
        with client.stream("GET", "/debug/live", headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                said = json.loads(response.read())["error"]["message"]
                raise RemoteFault(f"{client.base_url}: {response.status_code}: {said}")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise RemoteFault(f"no news from {client.base_url}: {error}") from error


def _follow(client: httpx.Client, show: Callable[[RenderableType], None]) -> None:
    """For ever: a balancer that restarts is waited for."""
    base_url = str(client.base_url)
    shown: RenderableType = ""
    while True:
        try:
            for facts in events(client):
                shown = screen(base_url, facts)
                show(shown)
        except RemoteFault as error:
            show(Group(Text(str(error), style="red"), shown))
        time.sleep(_AGAIN_S)


def screen(base_url: str, facts: Facts) -> RenderableType:
    """All of it, for a terminal of 80 columns or more."""
    state = (
        Text("ready", "green") if facts["ready"] else Text(f"not ready: {facts['reason']}", "red")
    )
    head = Text.assemble((facts["model"], "bold"), f" at {base_url}: ", state)
    parts: list[RenderableType] = [head, _numbers(facts), engines_table(facts), *_flows(facts)]
    parts.append(requests_table(facts))
    for error in facts["errors"][:3]:
        parts.append(
            Text(f"{error['ago_s']:.0f} s ago {error['request_id']}: {error['text']}", "red")
        )
    return Group(*parts)


def _numbers(facts: Facts) -> Text:
    beat, requests = facts["beat"], facts["requests"]
    return Text(
        f"{requests['running']} running, {requests['waiting']} waiting;"
        f" {beat['tokens_per_s']:.0f} tokens/s;"
        f" first token p50 {_ms(beat['ttft_p50_s'])} p95 {_ms(beat['ttft_p95_s'])};"
        f" next p50 {_ms(beat['itl_p50_s'])} p95 {_ms(beat['itl_p95_s'])}\n"
    )


def engines_table(facts: Facts) -> Table:
    """Prefill first; a bar of each engine's pages, and who left lately."""
    table = Table(box=None, pad_edge=False)
    for title in ("engine", "state", "run", "wait", "KV pages", ""):
        table.add_column(title, no_wrap=True)
    for engine in sorted(facts["engines"], key=lambda e: (e["role"] != "prefill", e["worker"])):
        pages = engine["pages"]
        free = pages.get("free", 0) + pages.get("cached", 0)
        table.add_row(
            f"{engine['worker']}@{engine['incarnation'][:_SHORT]}",
            engine["state"],
            str(engine["running"]),
            str(engine["queued"]),
            _bar(pages),
            f"{sum(pages.values()) - free} of {sum(pages.values())} held",
        )
    for gone in facts["gone"]:
        name = f"{gone['worker']}@{gone['incarnation'][:_SHORT]}"
        when = f"{gone['reason']}, {gone['ago_s']:.0f} s ago"
        table.add_row(name, Text("gone", "red"), "", "", "", when)
    return table


def _flows(facts: Facts) -> list[RenderableType]:
    flows = facts["flows"][:MAX_SHOWN]
    said = [f"{f['prefill']} -> {f['decode']}: {f['running']}" for f in flows]
    return [Text("in flight: " + ("; ".join(said) or "nothing") + "\n")]


def requests_table(facts: Facts) -> Table:
    """The running ones, then the last that ended."""
    table = Table(box=None, pad_edge=False)
    for title in ("request", "outcome", "tokens", "first", "took", "engines"):
        table.add_column(title, no_wrap=True)
    for request in facts["latest"][:MAX_SHOWN]:
        table.add_row(
            request["request_id"][:20],
            Text(request["outcome"] or "running", "red" if request["failed"] else ""),
            f"{request['prompt_tokens']} + {request['delivered_tokens']}",
            _ms(request["ttft_s"]),
            f"{request['took_s']:.2f} s",
            " -> ".join(request["workers"]),
        )
    return table


def _bar(pages: Mapping[str, int]) -> Text:
    total = max(1, sum(pages.values()))
    bar, left = Text(), _BAR
    for state, style in _STYLES.items():
        count = pages.get(state, 0)
        width = min(left, max(round(count / total * _BAR), 1)) if count else 0
        bar.append(("·" if state == "free" else "█") * width, style)
        left -= width
    return bar


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"

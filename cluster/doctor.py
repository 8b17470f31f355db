"""`pdserve doctor`: what is wrong with a cluster, or why one request is where it is.

Owns the tables and the exit code. The facts are the balancer's `/debug` routes and, where the `up` is
this user's own, what its supervisor sees; what they mean is `cluster.balancer.wire_findings`'s to say.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bootstrap.errors import RemoteFault
from cluster import runtime
from cluster.balancer.findings import Finding, Snapshot, answering
from cluster.balancer.wire_findings import findings
from cluster.endpoint import admin_header, choose_url

EXIT_WRONG = 1
TIMEOUT_S = 15.0
MAX_LONGEST = 8
_SHORT = 6  # digits of an incarnation
_STATES = ("free", "cached", "in_use", "leased", "reserved", "writing", "quarantined")


def doctor(request_id: str | None, url: str | None, as_json: bool) -> int:
    """Print what was found; 0 when nothing is wrong (or the request is known), else 1."""
    base_url = choose_url(url)
    if request_id is not None:
        return _explain(base_url, request_id, as_json)
    snapshot = fetch(base_url, "/debug/ledger")
    workers = [msgspec.to_builtins(worker) for worker in runtime.supervision_at(base_url)]
    found = findings(snapshot, workers)
    is_healthy = all(finding.note for finding in found)
    if as_json:
        said = [asdict(finding) for finding in found]
        facts = {"url": base_url, "healthy": is_healthy, "findings": said}
        print(json.dumps({**facts, "snapshot": snapshot, "supervision": workers}, indent=2))
    else:
        _print(Console(), report(base_url, snapshot, found))
    return 0 if is_healthy else EXIT_WRONG


def fetch(base_url: str, path: str) -> dict[str, Any]:
    """What the balancer answers; raises RemoteFault with its own words when it refuses."""
    try:
        response = httpx.get(f"{base_url}{path}", timeout=TIMEOUT_S, headers=admin_header(base_url))
        facts: dict[str, Any] = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise RemoteFault(f"no answer from {base_url}{path}: {error}") from error
    if response.status_code != httpx.codes.OK:
        said = facts.get("error", {}).get("message", response.reason_phrase)
        raise RemoteFault(f"{base_url}{path}: {response.status_code}: {said}")
    return facts


def _print(console: Console, parts: Iterator[RenderableType]) -> None:
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))  # a line stays one, for grep


# --- the whole cluster -----------------------------------------------------------------------


def report(base_url: str, snapshot: Snapshot, found: Sequence[Finding]) -> Iterator[RenderableType]:
    """Everything, the findings last: that is where a terminal leaves one's eyes."""
    took_ms = snapshot["took_s"] * 1000
    yield Text(f"{snapshot['model']} at {base_url}, {snapshot['balancer']}, in {took_ms:.0f} ms")
    yield Text(
        f"requests: {snapshot['num_requests']}, {snapshot['num_waiting']} of them without a pair;"
        f" pairs that can serve: {snapshot['num_pairs']}"
    )
    yield pools_table(snapshot)
    longest = longest_waits(snapshot)
    if longest:
        yield Text("longest waits:")
        yield _waits_table(longest)
    yield from finding_lines(found)


def pools_table(snapshot: Snapshot) -> Table:
    """One row per engine: its pages by state, their sum checked against the pool.

    States that no page is in anywhere are left out, for a terminal of 80 columns.
    """
    engines = sorted(snapshot["engines"], key=lambda e: (e["role"] != "prefill", e["worker"]))
    known = [engine for engine in engines if engine["answered"]]
    states = [s for s in _STATES if s == "free" or any(e["pages"].get(s) for e in known)]
    orphans = ["orphans"] if any(e["num_orphan_pages"] for e in known) else []
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("engine", "state", "transport"):
        table.add_column(title, no_wrap=True)
    for title in ("rooms", *states, "sum", *orphans):
        table.add_column(title, justify="right")
    for engine in engines:
        table.add_row(*_pool_cells(engine, states, bool(orphans)))
    return table


def _pool_cells(
    engine: Mapping[str, Any], states: Sequence[str], with_orphans: bool
) -> tuple[str, ...]:
    name = f"{engine['worker']}@{engine['incarnation'][:_SHORT]}"
    transport = engine["transfer"]["transport"]
    if not engine["answered"]:
        return name, "no answer", transport
    pages, num_pages = engine["pages"], engine["num_pages"]
    total = sum(pages.values())
    checked = f"{total} ok" if total == num_pages else f"{total} of {num_pages}!"
    counts = [str(pages.get(state, 0)) for state in states]
    orphans = (str(engine["num_orphan_pages"]),) if with_orphans else ()
    return name, engine["state"], transport, str(engine["num_rooms"]), *counts, checked, *orphans


def longest_waits(snapshot: Snapshot) -> list[tuple[str, Mapping[str, Any]]]:
    """Engine and room of those that have waited longest, the longest first."""
    waiting = [
        (engine["worker"], room)
        for engine in answering(snapshot)
        for room in engine["rooms"]
        if room["waits_for"] != "nothing"
    ]
    return sorted(waiting, key=lambda pair: -pair[1]["in_state_s"])[:MAX_LONGEST]


def _waits_table(waits: Sequence[tuple[str, Mapping[str, Any]]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    for worker, room in waits:
        name = room["request_id"] or "-"
        waited = f"{room['in_state_s']:.1f} s"
        table.add_row(waited, worker, room["room"], name, f"{room['state']}: {room['detail']}")
    return Padding(table, (0, 0, 0, 2))


def finding_lines(found: Sequence[Finding]) -> Iterator[Text]:
    """One line per finding, and a word when there is none."""
    wrong = [finding for finding in found if not finding.note]
    for finding in found:
        mark, style = ("note", "yellow") if finding.note else ("WRONG", "red")
        line = Text(f"{mark}: ", style=style)
        line.append(f"{finding.what}. It matters because {finding.why}. Next: {finding.next}.", "")
        yield line
    count = "1 thing is" if len(wrong) == 1 else f"{len(wrong)} things are"
    verdict = f"{count} wrong" if wrong else "nothing is wrong"
    yield Text(verdict, style="red" if wrong else "green")


# --- one request -----------------------------------------------------------------------------


def _explain(base_url: str, request_id: str, as_json: bool) -> int:
    facts = fetch(base_url, f"/debug/requests/{quote(request_id, safe='/')}")
    if as_json:
        print(json.dumps({"url": base_url, **facts}, indent=2))
        return 0
    console = Console()
    for request in facts["requests"]:
        _print(console, story_lines(request))
    return 0


def story_lines(request: Mapping[str, Any]) -> Iterator[Text]:
    """What happened to one request, when, and why it is where it is."""
    tokens = f"{request['delivered_tokens']} of at most {request['max_tokens']} tokens delivered"
    yield Text(f"{request['request_id']} ({request['id']}): {tokens}", style="bold")
    for step in request["steps"]:
        yield Text(f"  {step['at_s']:9.3f} s  {step['what']}")
    for leg in request["legs"]:
        if leg["room"] is not None:
            room, num_pages = leg["room"], len(leg["page_indices"])
            states = ", ".join(f"{count} {state}" for state, count in room["pages"].items())
            held = f"{num_pages} pages ({states or 'none'}), epoch {room['epoch']}"
            yield Text(f"  {leg['role']} leg on {leg['worker']}: {room['state']}, {held}")
    yield Text(f"  {request['verdict']}", style="bold")

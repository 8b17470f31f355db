"""`pdserve status`: who is there, what they do, and which pairs can serve.

Owns the tables. The facts are the balancer's `/status` and, where the `up` is this user's own, what
its supervisor sees: a worker that cannot start is no member and only the supervisor knows why.
"""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bootstrap.errors import RemoteFault
from cluster import runtime
from cluster.endpoint import choose_url, key_header
from cluster.runtime import SupervisedWorker

EXIT_NOT_READY = 1
TIMEOUT_S = 10.0
_SHORT = 6  # digits of an incarnation
_IDLE_PAGES = ("free", "cached")  # what a new request may take


def status(url: str | None, as_json: bool) -> int:
    """Print tables or JSON; 0 when requests can be served, else 1."""
    base_url = choose_url(url)
    facts = fetch(base_url)
    supervised = runtime.supervision_at(base_url)
    if as_json:
        workers = [msgspec.to_builtins(worker) for worker in supervised]
        print(json.dumps({"url": base_url, **facts, "supervision": workers}, indent=2))
    else:
        _print(Console(), base_url, facts, supervised)
    return 0 if facts["ready"] else EXIT_NOT_READY


def fetch(base_url: str) -> dict[str, Any]:
    """What the balancer says of the cluster; raises RemoteFault when it does not."""
    try:
        response = httpx.get(f"{base_url}/status", timeout=TIMEOUT_S, headers=key_header())
        response.raise_for_status()
        facts: dict[str, Any] = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise RemoteFault(f"no status from {base_url}: {error}") from error
    return facts


def _print(
    console: Console, base_url: str, facts: dict[str, Any], supervised: Sequence[SupervisedWorker]
) -> None:
    state = "[green]ready[/green]" if facts["ready"] else f"[red]not ready[/red]: {facts['reason']}"
    requests = facts["requests"]
    console.print(f"{facts['model']} at {base_url}: {state}")
    console.print(f"requests: {requests['running']} running, {requests['waiting']} waiting")
    console.print(workers_table(facts["members"], supervised))
    for line in [*balancer_lines(facts), *life_lines(supervised), *pair_lines(facts)]:
        console.print(Text(line))


def workers_table(
    members: Sequence[dict[str, Any]], supervised: Sequence[SupervisedWorker]
) -> Table:
    """One row per member, prefill first, and per supervised worker that is none."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("role", "worker", "incarnation", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("queue", "running", "blocks"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("transport", no_wrap=True)
    for member in sorted(members, key=lambda m: (m["role"] != "prefill", m["worker"])):
        table.add_row(*_cells(member))
    known = {member["worker"] for member in members}
    for worker in supervised:
        if worker.worker_id not in known:
            incarnation = (worker.incarnation or "")[:_SHORT]
            table.add_row(worker.role, worker.worker_id, incarnation, worker.state)
    return table


def _cells(member: dict[str, Any]) -> tuple[str, ...]:
    pages, transfer = member["pages"], member["transfer"]
    num_blocks = sum(pages.values())
    num_used = num_blocks - sum(pages.get(state, 0) for state in _IDLE_PAGES)
    return (
        member["role"],
        member["worker"],
        member["incarnation"][:_SHORT],
        member["state"],
        str(member["num_queued"]),
        str(member["num_running"]),
        f"{num_used}/{num_blocks}",
        f"{transfer['backend']} {transfer['transport']}",
    )


def balancer_lines(facts: dict[str, Any]) -> list[str]:
    """Every load balancer over these engines, where there is more than the one that was asked."""
    others = [balancer for balancer in facts["balancers"] if not balancer["me"]]
    if not others:
        return []
    return [
        f"{balancer['worker']} at {balancer['url']}: {balancer['state']},"
        f" {balancer['num_running']} running, {balancer['num_queued']} waiting"
        + (" (asked)" if balancer["me"] else "")
        for balancer in sorted(facts["balancers"], key=lambda balancer: balancer["worker"])
    ]


def life_lines(supervised: Sequence[SupervisedWorker]) -> list[str]:
    """What a supervisor adds: who starts or waits, how often each began anew, and what it died of."""
    lines = []
    for worker in supervised:
        said = []
        if worker.state == "waiting":
            said.append(f"starts again in {worker.retry_in_s} s")
        elif worker.state in ("draining", "ending", "starting"):
            said.append(worker.stage)
        if worker.num_restarts:
            said.append(f"restarts: {worker.num_restarts}")
        if worker.last_error:
            said.append(f"last error: {worker.last_error}")
        if said:
            lines.append(f"{worker.worker_id}: {'; '.join(said)}")
    return lines


def pair_lines(facts: dict[str, Any]) -> list[str]:
    """The pairs that can serve, and each that cannot with its reasons."""
    lines = [f"pairs that can serve: {facts['num_pairs']}"]
    lines += [f"  {pair['prefill']} -> {pair['decode']}" for pair in facts["pairs"]]
    for refusal in facts["refusals"]:
        lines.append(f"  {refusal['prefill']} -> {refusal['decode']} cannot:")
        lines += [f"    {difference}" for difference in refusal["differences"]]
    return lines

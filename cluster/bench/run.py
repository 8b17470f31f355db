"""`pdserve bench`: from settings to requests on the wire, a progress bar, and the reports.

Owns the clock, the connections and the order of events. In the open loop each request is sent when it
is due, whatever became of the others; in the closed loop `concurrency` clients ask one after another.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bootstrap.errors import ConfigError
from cluster.bench.client import Seen, ask, first_model, harmless_tokens
from cluster.bench.page import page
from cluster.bench.settings import BenchSettings
from cluster.bench.summary import Objectives, summarize
from cluster.bench.tables import print_summary
from cluster.bench.traces import read_trace
from cluster.bench.workload import Lengths, Offered, at_rate, scaled, synthetic
from cluster.endpoint import choose_url, key_header

EXIT_ALL_FAILED = 1

OnSeen = Callable[[Seen], None]


def bench(settings: BenchSettings) -> int:
    """Run the test, print and write its reports; 1 when no request was answered."""
    url = choose_url(settings.url)
    offered = planned(settings)
    objectives = Objectives.parse(settings.slo)
    _check_writable(settings)
    model, seen, elapsed_s = asyncio.run(_measure(settings, url, offered))
    facts = {
        "url": url,
        "model": model,
        "settings": asdict(settings),
        **summarize(seen, objectives, elapsed_s),
    }
    print_summary(Console(), facts)
    if settings.json is not None:
        requests = [_row(one) for one in seen]
        Path(settings.json).write_text(json.dumps({**facts, "each": requests}, indent=1))
    if settings.html is not None:
        Path(settings.html).write_text(page(facts, seen), encoding="utf-8")
    return 0 if facts["requests"]["completed"] else EXIT_ALL_FAILED


def planned(settings: BenchSettings) -> list[Offered]:
    """The requests to send, in order of time; raises ConfigError."""
    if settings.is_synthetic:
        offered = synthetic(
            settings.num_requests,
            Lengths.parse("input_tokens", settings.input_tokens),
            Lengths.parse("output_tokens", settings.output_tokens),
            settings.shared_prefix_tokens,
            settings.seed,
        )
    else:
        offered = read_trace(Path(settings.workload), settings.num_requests)
        offered = scaled(offered, settings.rate_scale, settings.length_scale)
    if settings.rate is not None:
        offered = at_rate(offered, settings.rate, settings.burstiness, settings.seed)
    return offered


def fitting(offered: Sequence[Offered], longest: int | None, skip: bool) -> list[Offered]:
    """Those that the model can take, which allows `longest` tokens; raises ConfigError unless `skip`."""
    if longest is None:
        return list(offered)
    fits = [request for request in offered if request.num_prompt + request.num_output <= longest]
    if len(fits) < len(offered) and not skip:
        most = max(request.num_prompt + request.num_output for request in offered)
        raise ConfigError(
            f"workload: its longest request has {most} tokens and the model takes {longest}:"
            f" choose --length-scale {longest / most:.2g} or less, or --skip-too-long"
        )
    if not fits:
        raise ConfigError(f"workload: no request fits in the {longest} tokens that the model takes")
    return fits


async def _measure(
    settings: BenchSettings, url: str, offered: list[Offered]
) -> tuple[str, list[Seen], float]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(settings.timeout_s, connect=min(10.0, settings.timeout_s), pool=None)
    async with httpx.AsyncClient(
        base_url=url, headers=key_header(), timeout=timeout, limits=limits
    ) as client:
        entry = await first_model(client)
        model = settings.model or str(entry["id"])
        offered = fitting(offered, entry.get("max_model_len"), settings.skip_too_long)
        print(f"bench: {len(offered)} requests to {model} at {url}", file=sys.stderr)
        vocabulary = await harmless_tokens(client, model)
        for request in offered[: settings.warmup]:
            await ask(client, model, request, vocabulary, time.monotonic, time.monotonic())
        began_at = time.monotonic()

        def clock() -> float:
            return time.monotonic() - began_at

        async def one(request: Offered, due_at: float) -> Seen:
            return await ask(client, model, request, vocabulary, clock, due_at)

        with _progress() as progress:
            task = progress.add_task("requests", total=len(offered), note="")

            def on_seen(seen: Seen) -> None:
                progress.update(task, advance=1, note=seen.failure[:60])

            if settings.concurrency is None:
                seen = await _open_loop(offered, one, clock, on_seen)
            else:
                seen = await _closed_loop(offered, one, clock, on_seen, settings.concurrency)
        return model, seen, clock()


async def _open_loop(
    offered: Sequence[Offered], one: Any, clock: Callable[[], float], on_seen: OnSeen
) -> list[Seen]:
    async def when_due(request: Offered) -> Seen:
        await asyncio.sleep(max(0.0, request.at_s - clock()))
        seen: Seen = await one(request, request.at_s)
        on_seen(seen)
        return seen

    return list(await asyncio.gather(*map(when_due, offered)))


async def _closed_loop(
    offered: Sequence[Offered],
    one: Any,
    clock: Callable[[], float],
    on_seen: OnSeen,
    concurrency: int,
) -> list[Seen]:
    left, seen = iter(offered), []

    async def worker() -> None:
        for request in left:
            seen.append(await one(request, clock()))
            on_seen(seen[-1])

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return seen


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[red]{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    )


def _check_writable(settings: BenchSettings) -> None:
    """Raise ConfigError now and not after the test."""
    for key in ("json", "html"):
        name = getattr(settings, key)
        if name is None:
            continue
        try:
            with Path(name).open("a"):
                pass
        except OSError as error:
            raise ConfigError(f"{key}={name!r}: {error.strerror}") from error


def _row(seen: Seen) -> dict[str, Any]:
    first = seen.ttft_s if seen.event_times else None
    return {
        "due_at": seen.due_at,
        "sent_at": seen.sent_at,
        "prompt_tokens": seen.num_prompt,
        "output_tokens": seen.num_output,
        "ttft_s": first,
        "tpot_s": seen.tpot_s,
        "e2e_s": seen.e2e_s,
        "failure": seen.failure,
    }

"""Three times the load that a cluster can carry: goodput, refusals, fairness, short prompts beside long.

Capacity is measured first, by clients that each ask again once they are answered. Then requests come three
times as fast, whoever is answered; then one key does that while another asks one thing at a time; then a
short prompt comes while a long one computes. `--against DIR` repeats it on another version's checkout.

    python -m benchmarks.overload [--seconds 20] [--factor 3] [--against DIR] [--json FILE]
"""

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.prompts import unique_prompt
from benchmarks.served import served

NUM_PROMPT, NUM_OUTPUT = 64, 8
NUM_LONG = 4000
NUM_CLIENTS = 16
MODEL_LEN = 4608


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request as its client saw it; `ttft_s` is None when there was no token."""

    status: int
    ttft_s: float | None
    ended_at: float
    retry_after_s: float | None


class Client:
    """Asks under one key; no two prompts share a block."""

    def __init__(self, http: httpx.AsyncClient, model: str, key: str) -> None:
        self._http, self._model = http, model
        self._headers = {"Authorization": f"Bearer {key}"}
        self._seeds = itertools.count(hash(key) & 0xFFFFFF)

    async def ask(self, num_prompt: int = NUM_PROMPT, num_output: int = NUM_OUTPUT) -> Outcome:
        """One streamed completion."""
        body = {
            "model": self._model,
            "prompt": unique_prompt(num_prompt, next(self._seeds)),
            "max_tokens": num_output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        started, first = time.perf_counter(), None
        url = "/v1/completions"
        async with self._http.stream("POST", url, json=body, headers=self._headers) as answer:
            async for line in answer.aiter_lines():
                if first is None and line.startswith("data: {") and '"error"' not in line:
                    first = time.perf_counter() - started
        retry = answer.headers.get("retry-after")
        retry_s = None if retry is None else float(retry)
        return Outcome(answer.status_code, first, time.perf_counter(), retry_s)


async def capacity(client: Client, seconds: float) -> float:
    """Requests per second that so many clients get answered, each asking again at once."""
    until = time.perf_counter() + seconds

    async def one() -> int:
        done = 0
        while time.perf_counter() < until:
            done += (await client.ask()).status == 200
        return done

    started = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(NUM_CLIENTS)))
    return sum(counts) / (time.perf_counter() - started)


async def open_load(client: Client, per_s: float, seconds: float) -> list[Outcome]:
    """Requests at a steady rate, whatever becomes of those before; waits for all of them."""
    started = time.perf_counter()
    asked: list[asyncio.Task[Outcome]] = []
    while (now := time.perf_counter() - started) < seconds:
        while len(asked) < now * per_s:
            asked.append(asyncio.create_task(client.ask()))
        await asyncio.sleep(0.005)
    return list(await asyncio.gather(*asked))


async def overload(client: Client, rate: float, factor: float, seconds: float) -> dict[str, float]:
    """What becomes of `factor` times what was seen to be possible."""
    started = time.perf_counter()
    outcomes = await open_load(client, factor * rate, seconds)
    served_s = max(o.ended_at for o in outcomes) - started
    good = [o for o in outcomes if o.status == 200]
    waits = [o.retry_after_s for o in outcomes if o.retry_after_s is not None]
    ttfts = sorted(o.ttft_s for o in good if o.ttft_s is not None)
    return {
        "goodput_of_capacity": len(good) / served_s / rate,
        "share_of_429": sum(o.status == 429 for o in outcomes) / len(outcomes),
        "share_of_other_errors": sum(o.status not in (200, 429) for o in outcomes) / len(outcomes),
        "p99_ttft_s": ttfts[int(0.99 * (len(ttfts) - 1))] if ttfts else float("nan"),
        "median_retry_after_s": statistics.median(waits) if waits else 0.0,
    }


async def fairness(
    flood: Client, light: Client, rate: float, factor: float, seconds: float
) -> dict[str, float]:
    """A key that asks one thing at a time, alone and beside one that asks for everything."""
    alone = [(await light.ask()).ttft_s for _ in range(5)]
    load = asyncio.create_task(open_load(flood, factor * rate, seconds))
    await asyncio.sleep(seconds / 4)
    beside: list[Outcome] = []
    while not load.done() and len(beside) < 20:
        beside.append(await light.ask())
    others = [o.ttft_s for o in await load if o.status == 200]
    return {
        "light_alone_ttft_s": _median(alone),
        "light_beside_flood_ttft_s": _median([o.ttft_s for o in beside]),
        "light_refused": sum(o.status != 200 for o in beside) / max(1, len(beside)),
        "flood_ttft_s": _median(others),
    }


async def beside_long(client: Client) -> dict[str, float]:
    """A short prompt's TTFT alone, and while one of 4,000 tokens computes."""
    alone = [(await client.ask()).ttft_s for _ in range(3)]
    beside: list[float | None] = []
    long_s: list[float | None] = []
    for _ in range(3):
        long = asyncio.create_task(client.ask(NUM_LONG, 2))
        await asyncio.sleep(1.0)
        beside.append((await client.ask()).ttft_s)
        long_s.append((await long).ttft_s)
    return {
        "short_alone_ttft_s": _median(alone),
        "short_beside_long_ttft_s": _median(beside),
        "long_ttft_s": _median(long_s),
    }


def _median(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else float("nan")


async def measure(url: str, seconds: float, factor: float) -> dict[str, float]:
    """All phases on one cluster."""
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        answer = await http.get("/v1/models", headers={"Authorization": "Bearer flood"})
        model = answer.json()["data"][0]["id"]
        flood, light = Client(http, model, "flood"), Client(http, model, "light")
        await light.ask()
        results = {"capacity_per_s": await capacity(flood, seconds / 2)}
        rate = results["capacity_per_s"]
        phases: list[Callable[[], Awaitable[dict[str, float]]]] = [
            lambda: overload(flood, rate, factor, seconds),
            lambda: fairness(flood, light, rate, factor, seconds),
            lambda: beside_long(light),
        ]
        for phase in phases:
            results |= await phase()
        return results


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--max-waiting", type=int, default=64)
    parser.add_argument("--against", metavar="DIR", help="the checkout of another version")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    columns: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("flood\nlight\n")
        flags = ["--api-key-file", str(keys), "--max-model-len", str(MODEL_LEN)]
        bound = ["--max-waiting-requests", str(args.max_waiting)]
        with served(*flags, *bound) as url:
            columns["this version"] = asyncio.run(measure(url, args.seconds, args.factor))
        if args.against:
            with served(*flags, folder=args.against) as url:
                columns[args.against] = asyncio.run(measure(url, args.seconds, args.factor))
    table = Table("", *columns)
    for name in columns["this version"]:
        table.add_row(name, *(f"{column[name]:.3g}" for column in columns.values()))
    Console().print(table)
    if args.json:
        Path(args.json).write_text(json.dumps(columns, indent=2))


if __name__ == "__main__":
    main()

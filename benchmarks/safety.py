"""What proving every block costs: the same requests with verified handoffs and without, in turns.

Two clusters run side by side, one with `--no-verify-handoff`; each request goes to one and then to the
other, and which is first alternates. While one works the other is idle. `transfer` is the time during
which a request's writes were under way; `first gap` lies between token 0 and token 1 and holds the end of
the transfer, the digests' comparison, and a decode step. Ratios are medians of the ratios of the pairs.

A second table takes the digests alone against the writes of the same blocks, between two agents of one
process, each the best of many, so that it also holds on a busy machine. The prefill engine digests beside
its writes; what the decode engine digests is the serial part.

    python -m benchmarks.safety [--num-tokens 1024] [--repeat 15] [--streams 4] [--transfer nixl]
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.prompts import unique_prompt
from benchmarks.served import histogram_totals, model_name, served
from benchmarks.streaming import stream_completion
from kv_transfer.backends.registry import make_backend
from kv_transfer.digests import block_digest
from kv_transfer.layout import KVLayout, Run

TRANSFER_TIME = "pdserve:transfer_seconds"
NUM_OUTPUT = 24
NUM_TRIES = 40
PROMPTS_ALONE = (128, 1024, 4096)
DEMO = {"num_kv_heads": 3, "num_layers": 30, "block_size": 16, "head_dim": 64, "itemsize": 4}
UNITS = {"transfer_s": "ms", "ttft_s": "ms", "first_gap_s": "ms", "tokens_per_s": "tokens/s"}
TITLES = {
    "transfer_s": "transfer",
    "ttft_s": "TTFT",
    "first_gap_s": "first gap",
    "tokens_per_s": "throughput",
}

Figures = dict[str, float]


class Site:
    """One cluster; no prompt is sent to it twice."""

    def __init__(self, url: str, num_tokens: int) -> None:
        self._url = url
        self._num_tokens = num_tokens
        self._model = model_name(url)
        self._seeds = count()
        self._client = httpx.Client(base_url=url, timeout=300)

    def one(self) -> Figures:
        """A request alone."""
        before = histogram_totals(self._url, TRANSFER_TIME)[0]
        prompt = unique_prompt(self._num_tokens, next(self._seeds))
        timing = stream_completion(self._client, self._model, prompt, NUM_OUTPUT)
        transfer_s = histogram_totals(self._url, TRANSFER_TIME)[0] - before
        return {
            "transfer_s": transfer_s,
            "ttft_s": timing.ttft_s,
            "first_gap_s": timing.gaps_s[0],
        }

    def many(self, num_streams: int) -> Figures:
        """Several at once; their output tokens per second."""
        prompts = [
            unique_prompt(self._num_tokens // 4, next(self._seeds)) for _ in range(num_streams)
        ]
        began = time.perf_counter()
        with ThreadPoolExecutor(num_streams) as pool:
            list(
                pool.map(
                    lambda p: stream_completion(self._client, self._model, p, NUM_OUTPUT), prompts
                )
            )
        return {"tokens_per_s": num_streams * NUM_OUTPUT / (time.perf_counter() - began)}


def measure(sites: Mapping[str, Site], repeat: int, num_streams: int) -> dict[str, list[Figures]]:
    """`repeat` rounds at each of the sites "on" and "off", after one that warms up."""
    rounds: dict[str, list[Figures]] = {name: [] for name in sites}
    for number in range(repeat + 1):
        names = list(sites) if number % 2 else list(reversed(sites))
        alone = {name: sites[name].one() for name in names}
        together = {name: sites[name].many(num_streams) for name in names}
        for name in names:
            rounds[name].append({**alone[name], **together[name]})
    return {name: figures[1:] for name, figures in rounds.items()}


def summary(rounds: Mapping[str, list[Figures]]) -> dict[str, Figures]:
    """Medians of both, and of the pairs' ratios; of a rate the ratio is turned over, so more is worse."""
    result = {}
    for key in TITLES:
        on, off = ([figures[key] for figures in rounds[name]] for name in ("on", "off"))
        costs = [(b / a if key == "tokens_per_s" else a / b) for a, b in zip(on, off, strict=True)]
        result[key] = {
            "on": statistics.median(on),
            "off": statistics.median(off),
            "cost": statistics.median(costs) - 1.0,
        }
    return result


def report(result: Mapping[str, Figures], title: str) -> None:
    """The table."""
    table = Table(title=title)
    for column in ("what", "verified", "not", "cost", "target"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for key, figures in result.items():
        scale = 1e3 if UNITS[key] == "ms" else 1.0
        values = [f"{figures[name] * scale:.1f} {UNITS[key]}" for name in ("on", "off")]
        table.add_row(TITLES[key], *values, f"{figures['cost']:+.1%}", "< 3 %")
    Console().print(table)


def digests_alone(transfer: str, num_tokens: int) -> Figures:
    """Best seconds for the write and for the digests of a prompt's blocks."""
    layout = KVLayout(num_blocks=-(-num_tokens // 16), **DEMO)
    source, target = (make_backend(transfer, name, "127.0.0.1") for name in ("source", "target"))
    arena = source.allocate(layout.num_bytes)
    target.allocate(layout.num_bytes)
    source.add_peer(target.metadata())
    blocks = memoryview(arena).cast("B")
    size = layout.block_bytes
    writes, digests = [], []
    for _ in range(NUM_TRIES):
        began = time.perf_counter()
        source.write("target", [Run(0, 0, layout.num_bytes)])
        while not source.poll():
            target.progress()
        writes.append(time.perf_counter() - began)
        began = time.perf_counter()
        for index in range(layout.num_blocks):
            block_digest(blocks[index * size : (index + 1) * size], bytes(16), 1, index)
        digests.append(time.perf_counter() - began)
    source.close()
    target.close()
    return {"write_s": min(writes), "digest_s": min(digests)}


def report_alone(alone: Mapping[int, Figures], transfer: str) -> None:
    """The second table."""
    table = Table(title=f"digests alone, against the writes over {transfer}; best of {NUM_TRIES}")
    for column in ("prompt", "write", "digests", "per token"):
        table.add_column(column, justify="right")
    for num_tokens, figures in alone.items():
        table.add_row(
            f"{num_tokens} tokens",
            f"{figures['write_s'] * 1e3:.2f} ms",
            f"{figures['digest_s'] * 1e3:.2f} ms",
            f"{figures['digest_s'] / num_tokens * 1e6:.2f} µs",
        )
    Console().print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-tokens", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=15, help="pairs; 0: the digests alone")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--transfer", default="nixl")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    alone = {n: digests_alone(args.transfer, n) for n in PROMPTS_ALONE}
    report_alone(alone, args.transfer)
    if not args.repeat:
        return
    flags = ("--transfer", args.transfer)
    with served(*flags) as on, served(*flags, "--no-verify-handoff") as off:
        sites = {"on": Site(on, args.num_tokens), "off": Site(off, args.num_tokens)}
        result = summary(measure(sites, args.repeat, args.streams))
    report(result, f"{args.num_tokens}-token prompts over {args.transfer}, {args.repeat} pairs")
    if args.json:
        figures = {**result, "alone": alone}
        args.json.write_text(json.dumps({**vars(args), "json": None, **figures}, indent=2))


if __name__ == "__main__":
    main()

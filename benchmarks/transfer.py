"""KV handoff against what carries it: bytes per second of pdserve's path, the bare library, and memcpy.

    python -m benchmarks.transfer [--backend nixl|mooncake] [--repeat 15] [--tokens 128,1024,4096]

A prompt's KV blocks go from one process's arena to another's. `pdserve` is what a prefill engine does:
merge (local page, remote page) pairs into runs, submit them to a `TransferPump`, and wait for the
outcome on another thread. `bare` hands the same runs to the library and spins until it says done.
`memcpy` copies the same number of bytes within one process. The three take turns in every repeat; each
figure is a median. `together` has its pages side by side, `scattered` in random order on both sides.
"""

import json
import multiprocessing
import queue
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bootstrap.membership import TransferMetadata
from kv_transfer.backends.process import unpack_blob
from kv_transfer.backends.registry import make_backend
from kv_transfer.layout import KVLayout, Run, merge_runs
from kv_transfer.pump import TransferPump

HOST = "127.0.0.1"
DEMO = {"num_kv_heads": 3, "num_layers": 30, "block_size": 16, "head_dim": 64, "itemsize": 4}

Pairs = list[tuple[int, int]]
Timed = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt length and page order. Rates are GB/s (1e9 bytes), medians over the repeats."""

    num_tokens: int
    order: str
    num_bytes: int
    num_runs: int
    pdserve_ms: float
    pdserve: float
    bare: float
    memcpy: float

    @property
    def ratio(self) -> float:
        """pdserve's share of what the bare library reaches."""
        return self.pdserve / self.bare


def _serve_target(conn: Connection, backend_name: str, num_bytes: int) -> None:
    """A decode engine's side: memory, and a pump that helps while inbound is open."""
    backend = make_backend(backend_name, "target-1", HOST)
    view = backend.allocate(num_bytes)
    np.frombuffer(view, dtype=np.uint8)[:] = 0  # every page is touched before anything is timed
    conn.send(msgspec.msgpack.encode(backend.metadata()))
    pump = TransferPump(backend, lambda _tag, _error: None)
    pump.start()
    pump.open_inbound()
    while True:
        request = conn.recv()
        if request is None:
            break
        offset, size = request
        conn.send(bytes(view[offset : offset + size]))
    pump.stop()


class Handoff:
    """pdserve's path to one target."""

    def __init__(self, backend_name: str, num_bytes: int) -> None:
        self._ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        backend = make_backend(backend_name, "source-1", HOST)
        self.view = backend.allocate(num_bytes)
        self.transport = backend.transport
        self.pump = TransferPump(backend, lambda _tag, error: self._ended.put(error))
        self.pump.start()

    def run(self, pairs: Pairs, block_bytes: int, target: str) -> float:
        """Seconds from the pairs to the outcome."""
        began = time.perf_counter()
        self.pump.submit(None, target, merge_runs(pairs, block_bytes))
        error = self._ended.get(timeout=60)
        assert error is None, error
        return time.perf_counter() - began


class BareNixl:
    """The library alone, over the same memory."""

    def __init__(self, view: memoryview, metadata: TransferMetadata) -> None:
        from nixl import _api

        config = _api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent: Any = _api.nixl_agent("bare-1", config)
        self._base = np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0]
        region = [(self._base, len(view), 0, "")]
        self._agent.register_memory(region, "DRAM", backends=["UCX"])
        self._agent.add_remote_agent(unpack_blob(metadata, "nixl").connection)
        self._metadata = metadata

    def run(self, runs: Sequence[Run]) -> float:
        """Seconds to write `runs`, its descriptors being ready."""
        there = self._metadata.base_address
        local = [(self._base + r.local_offset, r.num_bytes, 0) for r in runs]
        remote = [(there + r.remote_offset, r.num_bytes, 0) for r in runs]
        descriptors = [self._agent.get_xfer_descs(side, "DRAM") for side in (local, remote)]
        name = self._metadata.agent_name
        began = time.perf_counter()
        handle = self._agent.initialize_xfer("WRITE", *descriptors, name, b"", ["UCX"])
        state = self._agent.transfer(handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
        took = time.perf_counter() - began
        assert state == "DONE", state
        handle.release()
        return took


class BareMooncake:
    """The library alone, over the same memory, by its synchronous batch call."""

    def __init__(self, view: memoryview, metadata: TransferMetadata) -> None:
        from mooncake.engine import TransferEngine

        self._engine: Any = TransferEngine()
        assert self._engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") == 0
        self._base = np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0]
        assert self._engine.register_memory(self._base, len(view)) == 0
        self._session = unpack_blob(metadata, "mooncake").connection.decode()
        self._metadata = metadata

    def run(self, runs: Sequence[Run]) -> float:
        """Seconds to write `runs`."""
        there = self._metadata.base_address
        local = [self._base + r.local_offset for r in runs]
        remote = [there + r.remote_offset for r in runs]
        sizes = [r.num_bytes for r in runs]
        began = time.perf_counter()
        status = self._engine.batch_transfer_sync_write(self._session, local, remote, sizes)
        took = time.perf_counter() - began
        assert status == 0, status
        return took


def _pairs(num_pages: int, num_blocks: int, order: str) -> Pairs:
    if order == "together":
        return [(page, page) for page in range(num_blocks)]
    shuffled = random.Random(num_blocks)
    local = shuffled.sample(range(num_pages), num_blocks)
    return list(zip(local, shuffled.sample(range(num_pages), num_blocks), strict=True))


def _take_turns(paths: dict[str, Timed], repeat: int) -> dict[str, float]:
    """Median seconds of each path; the order turns round with every repeat."""
    for timed in paths.values():
        timed()
    times: dict[str, list[float]] = {name: [] for name in paths}
    for turn in range(repeat):
        names = list(paths) if turn % 2 else list(reversed(paths))
        for name in names:
            times[name].append(paths[name]())
    return {name: statistics.median(values) for name, values in times.items()}


def _time_memcpy(source: memoryview, target: memoryview, num_bytes: int) -> Timed:
    def timed() -> float:
        began = time.perf_counter()
        target[:num_bytes] = source[:num_bytes]
        return time.perf_counter() - began

    return timed


def measure(backend_name: str, token_counts: list[int], repeat: int) -> tuple[str, list[Row]]:
    """The transport that carried the bytes, and one row per prompt length and page order."""
    blocks = [-(-tokens // DEMO["block_size"]) for tokens in token_counts]
    layout = KVLayout(num_blocks=max(blocks) + 64, **DEMO)
    spawn = multiprocessing.get_context("spawn")
    conn, far_end = spawn.Pipe()
    arguments = (far_end, backend_name, layout.num_bytes)
    process = spawn.Process(target=_serve_target, args=arguments, daemon=True)
    process.start()
    metadata = msgspec.msgpack.decode(conn.recv(), type=TransferMetadata)
    handoff = Handoff(backend_name, layout.num_bytes)
    words = np.frombuffer(handoff.view, dtype=np.int64)
    words[:] = np.random.default_rng(0).integers(0, 2**63, len(words), dtype=np.int64)
    handoff.pump.add_peer(metadata)
    bare_class = BareNixl if backend_name == "nixl" else BareMooncake
    bare: BareNixl | BareMooncake = bare_class(handoff.view, metadata)
    scratch = memoryview(bytearray(layout.num_bytes))
    rows = []
    for tokens, num_blocks in zip(token_counts, blocks, strict=True):
        num_bytes = num_blocks * layout.block_bytes
        for order in ("together", "scattered"):
            pairs = _pairs(layout.num_blocks, num_blocks, order)
            runs = merge_runs(pairs, layout.block_bytes)
            took = _take_turns(
                {
                    "pdserve": partial(handoff.run, pairs, layout.block_bytes, "target-1"),
                    "bare": partial(bare.run, runs),
                    "memcpy": _time_memcpy(handoff.view, scratch, num_bytes),
                },
                repeat,
            )
            rates = {name: num_bytes / seconds / 1e9 for name, seconds in took.items()}
            row = Row(tokens, order, num_bytes, len(runs), took["pdserve"] * 1e3, **rates)
            rows.append(row)
            _check_landed(conn, handoff.view, runs[-1])
    conn.send(None)
    handoff.pump.stop()
    process.join(20)
    return handoff.transport, rows


def _check_landed(conn: Connection, view: memoryview, run: Run) -> None:
    size = min(run.num_bytes, 1 << 16)
    conn.send((run.remote_offset, size))
    assert conn.recv() == view[run.local_offset : run.local_offset + size], "wrong bytes"


def _print_table(backend_name: str, transport: str, rows: list[Row]) -> None:
    table = Table(
        title=f"KV handoff over {backend_name} ({transport}); rates in GB/s",
        caption="ratio: pdserve / bare; medians",
    )
    columns = ("tokens", "pages", "MB", "runs", "ms", "pdserve", "bare", "memcpy", "ratio")
    for name in columns:
        table.add_column(name, justify="left" if name == "pages" else "right")
    for row in rows:
        rates = (row.pdserve, row.bare, row.memcpy, row.ratio)
        table.add_row(
            str(row.num_tokens),
            row.order,
            f"{row.num_bytes / 1e6:.1f}",
            str(row.num_runs),
            f"{row.pdserve_ms:.2f}",
            *(f"{rate:.2f}" for rate in rates),
        )
    Console().print(table)


def main(
    backend: str = typer.Option("nixl", help="nixl or mooncake"),
    repeat: int = typer.Option(15, min=1, help="timed turns per path"),
    tokens: str = typer.Option("128,1024,4096", help="prompt lengths, comma separated"),
    as_json: bool = typer.Option(False, "--json", help="print JSON instead of a table"),
) -> None:
    """Measure the handoff path against the bare library and memcpy."""
    if backend not in ("nixl", "mooncake"):
        raise typer.BadParameter("allowed are nixl, mooncake", param_hint="--backend")
    transport, rows = measure(backend, [int(t) for t in tokens.split(",")], repeat)
    if as_json:
        found = [{**asdict(row), "ratio": row.ratio} for row in rows]
        print(json.dumps({"backend": backend, "transport": transport, "rows": found}, indent=2))
    else:
        _print_table(backend, transport, rows)


if __name__ == "__main__":
    typer.run(main)

"""TTFT, inter-token latency and tokens per second at 1, 4 and 8 streams, against transformers.

Each engine and `transformers.generate` run with the same number of torch threads and the same dtype.
`generate` gets all prompts of a level as one batch, its best case, and has no endpoint to serve.

    python -m benchmarks.serve [--streams 1 4 8] [--prompt-tokens 128] [--output-tokens 64] [--json FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.prompts import unique_prompt
from benchmarks.served import model_name, served
from benchmarks.streaming import Timing, stream_completion


def measure_pdserve(
    url: str, num_streams: int, num_prompt: int, num_output: int, seed: int = 0
) -> dict[str, float]:
    """All streams start together; throughput counts output tokens until the last one ended."""
    prompts = [unique_prompt(num_prompt, 1000 * num_streams + i + seed) for i in range(num_streams)]
    model = model_name(url)

    def run(prompt: list[int]) -> Timing:
        with httpx.Client(base_url=url, timeout=600) as client:
            return stream_completion(client, model, prompt, num_output)

    started = time.perf_counter()
    with ThreadPoolExecutor(num_streams) as threads:
        timings = list(threads.map(run, prompts))
    elapsed = time.perf_counter() - started
    gaps = [gap for timing in timings for gap in timing.gaps_s]
    return {
        "ttft_s": statistics.median(timing.ttft_s for timing in timings),
        "itl_s": statistics.median(gaps),
        "tokens_per_s": num_streams * num_output / elapsed,
    }


def measure_transformers(num_streams: int, num_prompt: int, num_output: int) -> dict[str, float]:
    """A process of its own, so that its torch has the engines' one thread and nothing else runs."""
    command = [sys.executable, "-m", "benchmarks.serve", "--baseline"]
    sizes = [str(num_streams), str(num_prompt), str(num_output)]
    output = subprocess.run([*command, *sizes], check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def baseline(num_streams: int, num_prompt: int, num_output: int) -> None:
    """Print the baseline's figures as JSON."""
    import torch
    from transformers import AutoModelForCausalLM

    from engine.demo_model import ensure_demo_model

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(ensure_demo_model(), dtype=torch.float32)
    prompts = [unique_prompt(num_prompt, 1000 * num_streams + i) for i in range(num_streams)]
    batch = torch.tensor(prompts)
    mask = torch.ones_like(batch)

    def timed(num_tokens: int) -> float:
        started = time.perf_counter()
        model.generate(
            batch,
            attention_mask=mask,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - started

    timed(2)
    first_s, whole_s = timed(1), timed(num_output)
    result = {
        "ttft_s": first_s,
        "itl_s": (whole_s - first_s) / (num_output - 1),
        "tokens_per_s": num_streams * num_output / whole_s,
    }
    print(json.dumps(result))


def report(results: dict[int, tuple[dict[str, float], dict[str, float]]], title: str) -> None:
    """One row a level, each figure beside the baseline's."""
    table = Table(title=title)
    for column in (
        "streams",
        "TTFT",
        "hf",
        "ratio",
        "ITL",
        "hf",
        "ratio",
        "tokens/s",
        "hf",
        "ratio",
    ):
        table.add_column(column, justify="right")
    for num_streams, (ours, theirs) in results.items():
        cells = []
        for key, scale, unit in (
            ("ttft_s", 1e3, " ms"),
            ("itl_s", 1e3, " ms"),
            ("tokens_per_s", 1, ""),
        ):
            cells += [f"{ours[key] * scale:.1f}{unit}", f"{theirs[key] * scale:.1f}{unit}"]
            cells.append(f"{ours[key] / theirs[key]:.2f}")
        table.add_row(str(num_streams), *cells)
    Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--transfer", default="nixl")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--baseline", type=int, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.baseline:
        baseline(*args.baseline)
        return
    sizes = args.prompt_tokens, args.output_tokens
    with served("--transfer", args.transfer) as url:
        measure_pdserve(url, 1, *sizes, seed=1 << 20)  # warms up, and no prompt is seen twice
        ours = {n: measure_pdserve(url, n, *sizes) for n in args.streams}
    results = {n: (ours[n], measure_transformers(n, *sizes)) for n in args.streams}
    title = f"{args.prompt_tokens} prompt and {args.output_tokens} output tokens, float32, one torch thread"
    report(results, title)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

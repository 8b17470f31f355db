"""What disaggregation costs one request: nothing at the first token, little at the second.

For a 1k-token prompt: time to first token at the client against the prefill time inside the engine
(target at most 1.10), and the gap from token 0 to token 1 against one decode step (target at most 2).

    python -m benchmarks.handoff [--num-tokens 1024] [--repeat 7] [--transfer nixl] [--json FILE]
"""

import argparse
import json
import statistics
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.prompts import unique_prompt
from benchmarks.served import histogram_totals, model_name, served
from benchmarks.streaming import stream_completion

PREFILL_TIME = "vllm:request_prefill_time_seconds"
NUM_OUTPUT = 24


def measure(url: str, num_tokens: int, repeat: int) -> dict[str, float]:
    """Medians over `repeat` requests, one at a time, after one that warms up."""
    ttft, prefill, gap, step = [], [], [], []
    model = model_name(url)
    with httpx.Client(base_url=url, timeout=300) as client:
        stream_completion(client, model, unique_prompt(num_tokens, -1), NUM_OUTPUT)
        for seed in range(repeat):
            before = histogram_totals(url, PREFILL_TIME)[0]
            prompt = unique_prompt(num_tokens, seed)
            timing = stream_completion(client, model, prompt, NUM_OUTPUT)
            prefill.append(histogram_totals(url, PREFILL_TIME)[0] - before)
            ttft.append(timing.ttft_s)
            gap.append(timing.gaps_s[0])
            step.append(statistics.median(timing.gaps_s[1:]))
    ratios = [a / b for a, b in zip(ttft, prefill, strict=True)]
    gap_ratios = [a / b for a, b in zip(gap, step, strict=True)]
    return {
        "ttft_s": statistics.median(ttft),
        "prefill_s": statistics.median(prefill),
        "ttft_over_prefill": statistics.median(ratios),
        "first_gap_s": statistics.median(gap),
        "decode_step_s": statistics.median(step),
        "first_gap_over_step": statistics.median(gap_ratios),
        "first_gap_over_step_worst": max(gap_ratios),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-tokens", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--transfer", default="nixl")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with served("--transfer", args.transfer) as url:
        result = measure(url, args.num_tokens, args.repeat)
    table = Table(title=f"{args.num_tokens}-token prompt over {args.transfer}, one at a time")
    for column in ("what", "median", "against", "median", "ratio", "target"):
        table.add_column(column, justify="left" if column in ("what", "against") else "right")
    table.add_row(
        "TTFT at the client",
        f"{result['ttft_s'] * 1e3:.1f} ms",
        "prefill in the engine",
        f"{result['prefill_s'] * 1e3:.1f} ms",
        f"{result['ttft_over_prefill']:.3f}",
        "<= 1.10",
    )
    table.add_row(
        "gap from token 0 to 1",
        f"{result['first_gap_s'] * 1e3:.1f} ms",
        "one decode step",
        f"{result['decode_step_s'] * 1e3:.1f} ms",
        f"{result['first_gap_over_step']:.2f}",
        "<= 2",
    )
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({**vars(args), "json": None, **result}, indent=2))


if __name__ == "__main__":
    main()

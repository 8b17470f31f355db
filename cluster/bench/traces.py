"""Readers of public traces of real traffic, which tell lengths and times but no texts.

Mooncake's (JSON lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of the prompt's
blocks of 512 tokens; https://github.com/kvcache-ai/Mooncake) and Azure's of 2023 and 2024 (CSV:
`TIMESTAMP`, `ContextTokens`, `GeneratedTokens`; https://github.com/Azure/AzurePublicDataset).
"""

import csv
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from bootstrap.errors import ConfigError
from cluster.bench.workload import Offered, Segment

MOONCAKE_BLOCK = 512
_AZURE_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(path: Path, num_requests: int) -> list[Offered]:
    """The first `num_requests` of a file, due from 0 on; raises ConfigError, naming the line."""
    if path.suffix not in _READERS:
        raise ConfigError(f"workload={str(path)!r}: allowed are synthetic, *.jsonl and *.csv")
    offered: list[Offered] = []
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            offered.extend(islice(_READERS[path.suffix](lines), num_requests))
    except OSError as error:
        raise ConfigError(f"workload={str(path)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        said = f"request {len(offered) + 1} cannot be read: {type(error).__name__}: {error}"
        raise ConfigError(f"workload={str(path)!r}: {said}") from error
    if not offered:
        raise ConfigError(f"workload={str(path)!r}: no requests in it")
    offered.sort(key=lambda request: request.at_s)
    first = offered[0].at_s
    return [Offered(r.at_s - first, r.prompt, r.num_output) for r in offered]


def _mooncake(lines: Any) -> Iterator[Offered]:
    for line in lines:
        if not line.strip():
            continue
        entry = json.loads(line)
        left = _count(entry["input_length"])
        segments = []
        for hash_id in entry["hash_ids"]:
            segments.append(Segment(f"block/{int(hash_id)}", min(left, MOONCAKE_BLOCK)))
            left -= segments[-1].num_tokens
        if left or not all(segment.num_tokens for segment in segments):
            raise ValueError(f"hash_ids do not cover input_length={entry['input_length']}")
        yield Offered(
            float(entry["timestamp"]) / 1000, tuple(segments), _count(entry["output_length"])
        )


def _azure(lines: Any) -> Iterator[Offered]:
    rows = csv.DictReader(lines)
    missing = [name for name in _AZURE_FIELDS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"no column {missing[0]}")
    for index, row in enumerate(rows):
        prompt = Segment(f"azure/{index}", _count(row["ContextTokens"]))
        yield Offered(_timestamp(row["TIMESTAMP"]), (prompt,), _count(row["GeneratedTokens"]))


def _timestamp(text: str) -> float:
    """Seconds. All traces are in UTC, and give more digits than datetime takes."""
    whole, _, fraction = text.removesuffix("+00:00").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def _count(value: Any) -> int:
    """Traces hold a few requests without output: one token is the least that can be asked for."""
    count = int(value)
    if count < 0:
        raise ValueError(f"{count} tokens")
    return max(1, count)


_READERS: dict[str, Callable[[Any], Iterator[Offered]]] = {".jsonl": _mooncake, ".csv": _azure}

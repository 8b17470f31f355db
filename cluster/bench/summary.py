"""From what clients saw to figures: percentiles, rates, and the share within the objectives. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bootstrap.errors import ConfigError
from cluster.bench.client import Seen

PERCENTILES = (50, 90, 95, 99)
COLUMNS = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")  # of a distribution
METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "whole request",
}
_UNITS = {"ms": 0.001, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Objectives:
    """Most seconds allowed, by a name of METRICS; a request is good when it is within all."""

    limits_s: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> "Objectives":
        """`ttft=500ms,tpot=50ms`; raises ConfigError."""
        limits_s: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.strip().partition("=")
            unit = "ms" if value.endswith("ms") else "s"
            try:
                limit_s = float(value.removesuffix(unit)) * _UNITS[unit]
            except ValueError:
                limit_s = -1.0
            if name in limits_s:
                raise ConfigError(f"slo={part!r}: {name} is there twice")
            if name not in METRICS or not 0 < limit_s < math.inf:
                allowed = ", ".join(f"{metric}=TIME" for metric in METRICS)
                raise ConfigError(f"slo={part!r}: allowed are {allowed} with 500ms or 0.5s")
            limits_s[name] = limit_s
        return cls(limits_s)

    def met_by(self, seen: Seen) -> bool:
        """Whether the answer came whole and in time."""
        return seen.ok and all(
            _value(seen, name) <= limit_s for name, limit_s in self.limits_s.items()
        )


def summarize(seen: Sequence[Seen], objectives: Objectives, elapsed_s: float) -> dict[str, Any]:
    """Everything that the reports show, ready for JSON; times are in seconds.

    `goodput` is the share of all offered requests, failed ones included, that met the objectives.
    """
    whole = [one for one in seen if one.ok]
    good = [one for one in seen if objectives.met_by(one)]
    gaps = [gap for one in whole for gap in one.gaps_s]
    times = {name: distribution(_values(whole, name)) for name in METRICS}
    return {
        "requests": {
            "offered": len(seen),
            "completed": len(whole),
            "failed": len(seen) - len(whole),
            "failures": dict(Counter(one.failure for one in seen if not one.ok).most_common(10)),
        },
        "elapsed_s": elapsed_s,
        "prompt_tokens": sum(one.num_prompt for one in whole),
        "output_tokens": sum(one.num_output for one in whole),
        "per_s": {
            "requests": len(whole) / elapsed_s,
            "prompt_tokens": sum(one.num_prompt for one in whole) / elapsed_s,
            "output_tokens": sum(one.num_output for one in whole) / elapsed_s,
            "good_requests": len(good) / elapsed_s,
        },
        "objectives_s": objectives.limits_s,
        "goodput": len(good) / len(seen) if seen else 0.0,
        "times_s": {**times, "itl": distribution(gaps)},
        "client_late_s": distribution(one.sent_at - one.due_at for one in seen),
    }


def distribution(values: Iterable[float]) -> dict[str, float]:
    """Mean, percentiles and the largest; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    figures = {"mean": sum(ordered) / len(ordered)}
    figures.update({f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES})
    return {**figures, "max": ordered[-1]}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, the least that `percent` of them do not exceed (nearest rank)."""
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(0, rank - 1)]


def _values(whole: Sequence[Seen], name: str) -> list[float]:
    """Answers of one token have no time per further token."""
    counted = [one for one in whole if name != "tpot" or one.num_output > 1]
    return [_value(one, name) for one in counted]


def _value(seen: Seen, name: str) -> float:
    return float(getattr(seen, f"{name}_s"))

"""What a load test offers: requests with their times and lengths, made up or read by `traces`.

Pure; equal seeds give equal workloads. A prompt is a row of segments, each the tokens of one seed, so
that requests which share a segment share a prefix that a server may have cached.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from bootstrap.errors import ConfigError

_EVEN = 1e-3  # less burstiness than that is none: the distribution would have no bound


@dataclass(frozen=True, slots=True)
class Segment:
    """`num_tokens` tokens that follow from `seed` alone."""

    seed: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Offered:
    """One request: when it is due, counted from the start of the test, and how long it is."""

    at_s: float
    prompt: tuple[Segment, ...]
    num_output: int

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.num_tokens for segment in self.prompt)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts from `low` to `high`, each as likely as the others."""

    low: int
    high: int

    @classmethod
    def parse(cls, key: str, text: str) -> "Lengths":
        """`N` or `LOW:HIGH`; raises ConfigError."""
        low, _, high = text.partition(":")
        try:
            lengths = cls(int(low), int(high or low))
        except ValueError:
            raise ConfigError(f"{key}={text!r}: allowed are N and LOW:HIGH") from None
        if not 1 <= lengths.low <= lengths.high:
            raise ConfigError(f"{key}={text!r}: 1 <= LOW <= HIGH is needed")
        return lengths

    def draw(self, rng: random.Random) -> int:
        """One of them."""
        return rng.randint(self.low, self.high)


def synthetic(
    num_requests: int, prompt: Lengths, output: Lengths, num_shared: int, seed: int
) -> list[Offered]:
    """Requests that are all due at once; the first `num_shared` tokens of all prompts are equal."""
    rng = random.Random(seed)
    offered = []
    for index in range(num_requests):
        num_prompt = prompt.draw(rng)
        shared = min(num_shared, num_prompt - 1)
        segments = [Segment(f"{seed}/shared", shared)] if shared else []
        segments.append(Segment(f"{seed}/{index}", num_prompt - shared))
        offered.append(Offered(0.0, tuple(segments), output.draw(rng)))
    return offered


def at_rate(offered: Sequence[Offered], rate: float, burstiness: float, seed: int) -> list[Offered]:
    """The same requests, due as they arrive at `rate` per second on average.

    Gaps follow a gamma distribution of shape 1 / `burstiness`: 1 is a Poisson process, 0 an even beat,
    more than 1 comes in bursts.
    """
    rng = random.Random(f"{seed}/arrivals")

    def gap() -> float:
        if burstiness < _EVEN:
            return 1 / rate
        return rng.gammavariate(1 / burstiness, burstiness / rate)

    times = accumulate((gap() for _ in offered[1:]), initial=0.0)
    return [replace(request, at_s=at_s) for request, at_s in zip(offered, times, strict=True)]


def scaled(offered: Sequence[Offered], rate: float, lengths: float) -> list[Offered]:
    """The same requests, arriving `rate` times as fast and `lengths` times as long.

    What was a shared prefix stays one: equal segments stay equal.
    """

    def shorter(segment: Segment) -> Segment:
        return replace(segment, num_tokens=max(1, round(segment.num_tokens * lengths)))

    return [
        Offered(
            request.at_s / rate,
            tuple(shorter(segment) for segment in request.prompt),
            max(1, round(request.num_output * lengths)),
        )
        for request in offered
    ]


def token_ids(request: Offered, vocabulary: Sequence[int]) -> list[int]:
    """The prompt's ids, drawn from `vocabulary`."""
    ids: list[int] = []
    for segment in request.prompt:
        ids += random.Random(segment.seed).choices(vocabulary, k=segment.num_tokens)
    return ids

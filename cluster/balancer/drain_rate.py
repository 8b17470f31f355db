"""How fast work drains, as measured: what a wait is foretold from.

Pure; knows tokens and times, not requests.
"""

import math

MEMORY_S = 10.0  # busy seconds after which a measurement counts 1/e
MIN_MEASURED_S = 0.5
MEMORY_REQUESTS = 32
FIRST_GUESS_TOKENS = 64.0


class DrainRate:
    """Tokens a second while work waited, the latest seconds counting most.

    The clock runs only while something waits: a rate that was seen with idle engines would say how
    little was asked, not how much can be done.
    """

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        self._memory_s = memory_s
        self._tokens = 0.0  # decayed
        self._busy_s = (
            0.0  # decayed like the tokens, so that their ratio is unbiased from the start
        )
        self._measured_s = 0.0
        self._running_since: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """The rate, or None before enough was seen; never 0."""
        if self._measured_s < MIN_MEASURED_S or self._tokens <= 0:
            return None
        return self._tokens / self._busy_s

    @property
    def is_settled(self) -> bool:
        """Whether enough was seen to turn somebody away for it: prompts are done in large lumps."""
        return self._measured_s >= self._memory_s

    def observe(self, num_tokens: int, now: float, *, waiting: bool) -> None:
        """`num_tokens` were done since the last call; from now on something is `waiting`, or not."""
        if self._running_since is not None:
            elapsed_s = max(0.0, now - self._running_since)
            kept = math.exp(-elapsed_s / self._memory_s)
            self._tokens = self._tokens * kept + num_tokens
            self._busy_s = self._busy_s * kept + elapsed_s
            self._measured_s += elapsed_s
        self._running_since = now if waiting else None


class ExpectedOutput:
    """How long answers have lately been, which clients' limits say little about."""

    def __init__(self) -> None:
        self._mean = FIRST_GUESS_TOKENS

    def ended(self, num_tokens: int) -> None:
        """An answer came to its end after so many tokens."""
        self._mean += (num_tokens - self._mean) / MEMORY_REQUESTS

    def of(self, max_tokens: int) -> int:
        """Output tokens to reckon with where `max_tokens` are allowed."""
        return min(max_tokens, max(1, round(self._mean)))

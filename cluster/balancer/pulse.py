"""How fast tokens came lately: the last seconds' first tokens and gaps. Pure."""

from collections import deque
from dataclasses import dataclass

WINDOW_S = 10.0
MAX_READINGS = 4096


@dataclass(frozen=True, slots=True)
class Beat:
    """Percentiles over the window, None where nothing was read; tokens per second."""

    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    tokens_per_s: float


class Pulse:
    """Holds the latest readings, MAX_READINGS of each kind at most."""

    def __init__(self) -> None:
        self._ttfts: deque[tuple[float, float]] = deque(maxlen=MAX_READINGS)
        self._gaps: deque[tuple[float, float]] = deque(maxlen=MAX_READINGS)
        self._tokens: deque[tuple[float, int]] = deque(maxlen=MAX_READINGS)

    def first_token(self, ttft_s: float, now: float) -> None:
        """A request's first token came."""
        self._ttfts.append((now, ttft_s))

    def gap(self, gap_s: float, now: float) -> None:
        """A later one came."""
        self._gaps.append((now, gap_s))

    def tokens(self, num_tokens: int, now: float) -> None:
        """So many came at once."""
        self._tokens.append((now, num_tokens))

    def beat(self, now: float) -> Beat:
        """Of the window that ends now."""
        since = now - WINDOW_S
        ttfts = sorted(value for at, value in self._ttfts if at > since)
        gaps = sorted(value for at, value in self._gaps if at > since)
        num_tokens = sum(count for at, count in self._tokens if at > since)
        return Beat(
            ttft_p50_s=_share(ttfts, 0.5),
            ttft_p95_s=_share(ttfts, 0.95),
            itl_p50_s=_share(gaps, 0.5),
            itl_p95_s=_share(gaps, 0.95),
            tokens_per_s=num_tokens / WINDOW_S,
        )


def _share(ordered: list[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

"""What became known of one request's way through the cluster: where its time went."""

from dataclasses import dataclass

from bootstrap.identity import Role
from bootstrap.messages import LegStats


@dataclass(slots=True)
class RequestStats:
    """Readings of the balancer's clock, and what the workers measured; None until it is known.

    Of several attempts the first one's prefill counts: it gave the client's first token.
    """

    arrived_at: float
    first_token_at: float | None = None
    second_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    num_tokens: int = 0
    num_attempts: int = 1
    prefill: LegStats | None = None
    decode: LegStats | None = None

    def tokens(self, num_tokens: int, now: float) -> None:
        """Tokens came, all at once."""
        if self.first_token_at is None:
            self.first_token_at = now
        if self.second_token_at is None and self.num_tokens + num_tokens > 1:
            self.second_token_at = now
        self.last_token_at = now
        self.num_tokens += num_tokens

    def measured(self, role: Role, stats: LegStats) -> None:
        """A leg told what it measured."""
        if role is Role.DECODE:
            self.decode = stats
        elif self.prefill is None:
            self.prefill = stats

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that prefill did not compute."""
        return 0 if self.prefill is None else self.prefill.num_cached_tokens

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return _between(self.arrived_at, self.first_token_at)

    @property
    def handoff_s(self) -> float | None:
        """From the prefill engine's token to the decode engine's first, one step of it included."""
        return _between(self.first_token_at, self.second_token_at)

    @property
    def itl_s(self) -> float | None:
        """Mean time between two tokens, the handoff included."""
        total = _between(self.first_token_at, self.last_token_at)
        return None if total is None or self.num_tokens < 2 else total / (self.num_tokens - 1)

    @property
    def total_s(self) -> float | None:
        """From arrival to outcome."""
        return _between(self.arrived_at, self.ended_at)

    def as_fields(self) -> dict[str, float | int | None]:
        """All of it for clients, in seconds and tokens."""
        prefill, decode = self.prefill, self.decode
        return {
            "queue_s": None if prefill is None else _rounded(prefill.queue_s),
            "prefill_s": None if prefill is None else _rounded(prefill.compute_s),
            "transfer_s": None if decode is None else _rounded(decode.transfer_s),
            "handoff_s": _rounded(self.handoff_s),
            "decode_s": None if decode is None else _rounded(decode.compute_s),
            "ttft_s": _rounded(self.ttft_s),
            "itl_s": _rounded(self.itl_s),
            "total_s": _rounded(self.total_s),
            "cached_tokens": self.num_cached_tokens,
            "attempts": self.num_attempts,
        }

    @property
    def line(self) -> str:
        """All of it for a log; what is unknown is left out."""
        known = [(name, value) for name, value in self.as_fields().items() if value is not None]
        return " ".join(
            f"{name}={value:g}" for name, value in [("tokens", self.num_tokens), *known]
        )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)

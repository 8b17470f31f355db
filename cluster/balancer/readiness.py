"""Whether the cluster serves: not by who is registered, but by tokens that passed over a pair."""

from collections.abc import Iterable

from bootstrap.identity import WorkerRef
from cluster.balancer.policy import Pool

RECENT_S = 20.0

_Refs = tuple[WorkerRef, WorkerRef]


class Readiness:
    """Ready means: some pair that can serve now has handed off and decoded within RECENT_S."""

    def __init__(self) -> None:
        self._served_at: dict[_Refs, float] = {}
        self._last_fault: str | None = None

    def served(self, refs: _Refs, now: float) -> None:
        """A token came from the decode worker of a pair, prefill first."""
        self._served_at[refs] = now
        self._last_fault = None

    def probe_failed(self, detail: str, *, conclusive: bool) -> None:
        """A probe got no answer. If `conclusive`, no pair works, whatever was seen before."""
        self._last_fault = detail
        if conclusive:
            self._served_at.clear()

    def keep_only(self, refs: Iterable[WorkerRef]) -> None:
        """Forget workers that are gone."""
        present = set(refs)
        self._served_at = {
            pair: at for pair, at in self._served_at.items() if present.issuperset(pair)
        }

    def unproven_reason(
        self, pools: Iterable[Pool], now: float, recent_s: float = RECENT_S
    ) -> str | None:
        """Why nothing proves that a pair among `pools` serves, or None when something does."""
        for pool in pools:
            prefills = {info.peer.ref for info in pool.prefills}
            decodes = {info.peer.ref for info in pool.decodes}
            for (prefill, decode), at in self._served_at.items():
                if prefill in prefills and decode in decodes and now - at < recent_s:
                    return None
        if self._last_fault is not None:
            return f"the last probe failed: {self._last_fault}"
        return "no request has passed over a pair yet"

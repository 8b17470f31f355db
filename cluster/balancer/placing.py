"""One round of looking for pairs: what did not fit is not tried again within it.

Pure. A round is short: while it lasts, workers only get more to do.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from bootstrap.identity import WorkerRef
from bootstrap.messages import FailureReason
from cluster.balancer.occupancy import Occupancy, step_tokens
from cluster.balancer.policy import NoPair, Pair, Pool, Size, select_pair


class PlacingRound:
    """Every answer is what `select_pair` would say; most are known without asking it.

    Sizes are of one kind when each prefill worker counts their prompts as large or does not. Of one
    kind the larger fits nowhere where the smaller does not, as long as nobody is blamed.
    """

    def __init__(self, pools: Sequence[Pool], occupancy: Occupancy) -> None:
        self._pools = pools
        self._occupancy = occupancy
        self._prefills = [info for pool in pools for info in pool.prefills]
        self._steps = sorted({step_tokens(info) for info in self._prefills})
        self._failed: dict[tuple[int, bool], list[Size]] = {}

    def may_go_on(self) -> bool:
        """Whether any prefill worker takes anything."""
        takes = self._occupancy.takes_prompt
        return any(takes(i, 0) or takes(i, step_tokens(i) + 1) for i in self._prefills)

    def find(self, size: Size, blamed: Mapping[WorkerRef, FailureReason]) -> Pair | NoPair | None:
        """A pair, why there is none, or None when a smaller request did not find one either."""
        kind = bisect_left(self._steps, size.num_prompt), size.num_output == 1
        failed = self._failed.setdefault(kind, [])
        if not blamed and any(_within(smaller, size) for smaller in failed):
            return None
        outstanding = self._occupancy.outstanding
        found = select_pair(self._pools, outstanding, size, blamed, self._occupancy)
        if isinstance(found, NoPair) and not blamed:
            failed[:] = [size, *(other for other in failed if not _within(size, other))]
        return found


def _within(smaller: Size, size: Size) -> bool:
    return smaller.num_prompt <= size.num_prompt and smaller.total <= size.total

"""One round of looking for pairs: what did not fit is not tried again within it.

Pure. A round is short: while it lasts, workers only get more to do.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from bootstrap.identity import WorkerRef
from bootstrap.messages import FailureReason
from cluster.balancer.occupancy import UNKNOWN_STEP_TOKENS, Occupancy, step_tokens
from cluster.balancer.policy import NoPair, Pair, Pool, Size, select_pair


class PlacingRound:
    """Every answer is what `select_pair` would say; most are known without asking it.

    Sizes are of one kind when each prefill worker counts their prompts as large or does not. Of one
    kind the larger fits nowhere where the smaller does not, as long as nobody is blamed.
    """

    def __init__(self, pools: Sequence[Pool], occupancy: Occupancy) -> None:
        self._pools = pools
        self._occupancy = occupancy
        self._steps = _steps(pools)
        self._failed: dict[int, list[Size]] = {}

    def is_open(self, is_large: bool) -> bool:
        """Whether some pair takes a prompt over the smallest step, or one within it."""
        takes = self._occupancy.takes_prompt
        differ = len(self._steps) > 1
        return any(
            any(
                takes(info, step_tokens(info) + 1 if is_large else 0) or (differ and takes(info, 0))
                for info in pool.prefills
            )
            and any(self._occupancy.takes_sequence(info) for info in pool.decodes)
            for pool in self._pools
        )

    def find(
        self,
        size: Size,
        blamed: Mapping[WorkerRef, FailureReason],
        prefers: WorkerRef | None = None,
    ) -> Pair | NoPair | None:
        """A pair, why there is none, or None when a smaller request did not find one either."""
        failed = self._failed.setdefault(bisect_left(self._steps, size.num_prompt), [])
        if not blamed and any(_within(smaller, size) for smaller in failed):
            return None
        outstanding = self._occupancy.burden()
        found = select_pair(self._pools, outstanding, size, blamed, self._occupancy, prefers)
        if isinstance(found, NoPair) and not blamed:
            failed[:] = [size, *(other for other in failed if not _within(size, other))]
        return found


def is_large(num_prompt: int, pools: Sequence[Pool]) -> bool:
    """Whether some prefill worker needs more than one step for such a prompt."""
    return num_prompt > min(_steps(pools), default=UNKNOWN_STEP_TOKENS)


def _steps(pools: Sequence[Pool]) -> list[int]:
    return sorted({step_tokens(info) for pool in pools for info in pool.prefills})


def _within(smaller: Size, size: Size) -> bool:
    return smaller.num_prompt <= size.num_prompt and smaller.total <= size.total

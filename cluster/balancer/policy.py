"""Which pair takes a request: pure functions of what the balancer knows now."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bootstrap.contract import KVContract
from bootstrap.identity import WorkerRef
from bootstrap.membership import WorkerInfo
from bootstrap.messages import FailureReason

# Faults between two workers, of which each may be sound: they are tried again before giving up.
TRANSIENT = frozenset(
    {
        FailureReason.TRANSFER_FAILED,
        FailureReason.HANDOFF_REJECTED,
        FailureReason.PEER_ABORTED,
        FailureReason.CANCELLED,
    }
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode worker with equal contracts."""

    prefill: WorkerInfo
    decode: WorkerInfo

    @property
    def refs(self) -> tuple[WorkerRef, WorkerRef]:
        """Both workers, prefill first."""
        return self.prefill.peer.ref, self.decode.peer.ref


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers of one contract: each prefill worker pairs with each decode worker."""

    contract: KVContract
    prefills: tuple[WorkerInfo, ...]
    decodes: tuple[WorkerInfo, ...]

    def max_output(self, num_prompt: int) -> int:
        """Output tokens that some pair has place for after the prompt; under 1: none takes it."""
        block_size = self.contract.block_size
        prompt_limits = [
            info.limits.max_model_len
            for info in self.prefills
            if num_prompt <= info.limits.num_blocks * block_size
        ]
        total_limits = [
            min(info.limits.max_model_len, info.limits.num_blocks * block_size)
            for info in self.decodes
        ]
        return min(max(prompt_limits, default=0), max(total_limits, default=0)) - num_prompt


@dataclass(frozen=True, slots=True)
class Size:
    """A request's size in tokens. In a retry, output that was delivered counts as prompt."""

    num_prompt: int
    num_output: int

    @property
    def total(self) -> int:
        """Tokens that the decode engine may come to hold."""
        return self.num_prompt + self.num_output

    def fits_prefill(self, info: WorkerInfo) -> bool:
        """Whether a prefill worker could ever serve it."""
        room = info.limits.num_blocks * info.contract.block_size
        return self.num_prompt <= room and self.total <= info.limits.max_model_len

    def fits_decode(self, info: WorkerInfo) -> bool:
        """Whether a decode worker could ever serve it."""
        room = info.limits.num_blocks * info.contract.block_size
        return self.total <= min(room, info.limits.max_model_len)


@dataclass(frozen=True, slots=True)
class NoPair:
    """Nobody to send a request to. `overloaded` when a pair would do but for its full queue."""

    overloaded: bool


@dataclass(frozen=True, slots=True)
class _Chooser:
    outstanding: Mapping[WorkerRef, int]
    size: Size
    blamed: Mapping[WorkerRef, FailureReason]

    def best(self, pool: Pool, forgiven: Collection[FailureReason]) -> Pair | None:
        prefills = [
            i for i in pool.prefills if self._may(i, forgiven) and self.size.fits_prefill(i)
        ]
        decodes = [i for i in pool.decodes if self._may(i, forgiven) and self.size.fits_decode(i)]
        if not prefills or not decodes:
            return None
        return Pair(min(prefills, key=self._rank), min(decodes, key=self._rank))

    def rank(self, pair: Pair) -> tuple[bool, int, int, WorkerRef]:
        prefill, decode = self._rank(pair.prefill), self._rank(pair.decode)
        return prefill[0] or decode[0], prefill[1], decode[1], prefill[2]

    def _may(self, info: WorkerInfo, forgiven: Collection[FailureReason]) -> bool:
        blame = self.blamed.get(info.peer.ref)
        return blame is None or blame in forgiven

    def _rank(self, info: WorkerInfo) -> tuple[bool, int, WorkerRef]:
        ref = info.peer.ref
        return ref in self.blamed, self.outstanding.get(ref, 0), ref


def select_pair(
    pools: Sequence[Pool],
    outstanding: Mapping[WorkerRef, int],
    size: Size,
    blamed: Mapping[WorkerRef, FailureReason],
) -> Pair | NoPair:
    """The least loaded prefill worker that has a partner, and its least loaded partner.

    `outstanding` counts tokens not yet done, by worker. `blamed` are the workers that earlier
    attempts of this request failed on: they are avoided, and returned to only for transient faults.
    """
    chooser = _Chooser(outstanding, size, blamed)
    pairs = [pair for pool in pools if (pair := chooser.best(pool, TRANSIENT)) is not None]
    if pairs:
        return min(pairs, key=chooser.rank)
    forgiven = TRANSIENT | {FailureReason.QUEUE_FULL}
    return NoPair(overloaded=any(chooser.best(pool, forgiven) is not None for pool in pools))

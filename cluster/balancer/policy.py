"""Which pair takes a request: pure functions of what the balancer knows now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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
    """Nobody to send a request to. `saturated` when a pair will do once it has done enough."""

    saturated: bool


class Saturation(Protocol):
    """Who has enough to do for now."""

    def takes_prompt(self, info: WorkerInfo, num_prompt: int) -> bool:
        """Whether a prefill worker shall be given such a prompt now."""
        ...

    def takes_sequence(self, info: WorkerInfo) -> bool:
        """Whether a decode worker shall be given one more answer to write now."""
        ...


class Unsaturated:
    """Nobody ever has enough."""

    def takes_prompt(self, info: WorkerInfo, num_prompt: int) -> bool:
        """Always."""
        return True

    def takes_sequence(self, info: WorkerInfo) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, slots=True)
class _Chooser:
    outstanding: Mapping[WorkerRef, int]
    size: Size
    blamed: Mapping[WorkerRef, FailureReason]
    prefers: WorkerRef | None

    def best(self, pool: Pool, saturation: Saturation) -> Pair | None:
        size, takes_prompt = self.size, saturation.takes_prompt
        prefills = [
            i
            for i in pool.prefills
            if self._may(i) and size.fits_prefill(i) and takes_prompt(i, size.num_prompt)
        ]
        decodes = [
            i
            for i in pool.decodes
            if self._may(i) and size.fits_decode(i) and saturation.takes_sequence(i)
        ]
        if not prefills or not decodes:
            return None
        return Pair(min(prefills, key=self._rank), min(decodes, key=self._rank))

    def rank(self, pair: Pair) -> tuple[bool, bool, int, int, WorkerRef]:
        prefill, decode = self._rank(pair.prefill), self._rank(pair.decode)
        return prefill[0] or decode[0], prefill[1], prefill[2], decode[2], prefill[3]

    def _may(self, info: WorkerInfo) -> bool:
        blame = self.blamed.get(info.peer.ref)
        return blame is None or blame in TRANSIENT

    def _rank(self, info: WorkerInfo) -> tuple[bool, bool, int, WorkerRef]:
        ref = info.peer.ref
        return ref in self.blamed, ref != self.prefers, self.outstanding.get(ref, 0), ref


_UNSATURATED = Unsaturated()


def select_pair(
    pools: Sequence[Pool],
    outstanding: Mapping[WorkerRef, int],
    size: Size,
    blamed: Mapping[WorkerRef, FailureReason],
    saturation: Saturation = _UNSATURATED,
    prefers: WorkerRef | None = None,
) -> Pair | NoPair:
    """The least loaded prefill worker that has a partner, and its least loaded partner.

    `outstanding` counts tokens not yet done, by worker. `blamed` are the workers that earlier
    attempts of this request failed on: they are avoided, and returned to only for transient faults.
    The prefill worker that it `prefers` has its prompt's blocks still, perhaps.
    """
    chooser = _Chooser(outstanding, size, blamed, prefers)
    pairs = [pair for pool in pools if (pair := chooser.best(pool, saturation)) is not None]
    if pairs:
        return min(pairs, key=chooser.rank)
    return NoPair(saturated=any(chooser.best(pool, _UNSATURATED) is not None for pool in pools))

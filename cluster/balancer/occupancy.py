"""What each worker was given and has not done, and from that who has enough for now.

Pure. Requests beyond that wait in the balancer, where their order can still be changed, not in an
engine's queue, where it cannot.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bootstrap.identity import WorkerRef
from bootstrap.membership import WorkerInfo
from cluster.balancer.attempt import Attempt
from cluster.balancer.others import Loads, Others
from cluster.balancer.policy import Size

STEPS_AHEAD = 2  # of prompts: one is computed, the next is there when it ends
LARGE_AHEAD = 2  # prompts of more than one step
UNKNOWN_STEP_TOKENS = 512  # of a worker that does not say how much it computes in a step
SEQS_AHEAD = 0.25  # of a decode worker's sequences: on their way while all places are taken
FULL_WAIT_S = 0.25  # until a worker that said that its queue is full is asked again


@dataclass(frozen=True, slots=True)
class _Charge:
    """What one attempt adds to one worker."""

    num_tokens: int
    is_large: bool
    is_prefill: bool


class Occupancy:
    """`outstanding` are tokens by worker: a prompt's until its token 0, a decode leg's until its end.

    A prefill worker has enough with two steps' tokens of prompts that fit a step, and, apart from
    those, with two larger ones: it never idles while requests wait, a short prompt need not wait for a
    large one to end, and the other way round. A decode worker has enough with a few sequences more
    than it can run, or with as many tokens as its pages hold.
    """

    def __init__(self) -> None:
        self.others = Others()
        self.outstanding: Counter[WorkerRef] = Counter()
        self._small: Counter[WorkerRef] = Counter()  # tokens
        self._large: Counter[WorkerRef] = Counter()  # prompts
        self._seqs: Counter[WorkerRef] = Counter()
        self._charges: dict[bytes, dict[WorkerRef, _Charge]] = {}
        self._full_until: dict[WorkerRef, float] = {}

    # --- what changes --------------------------------------------------------------------------

    def begin(self, attempt: Attempt, size: Size, num_expected: int) -> None:
        """An attempt was sent out; its answer is expected to have `num_expected` tokens."""
        prefill = attempt.pair.prefill
        is_large = size.num_prompt > step_tokens(prefill)
        charges = {prefill.peer.ref: _Charge(size.num_prompt, is_large, True)}
        if attempt.decode is not None:
            total = size.num_prompt + num_expected
            charges[attempt.pair.decode.peer.ref] = _Charge(total, False, False)
        self._charges[attempt.room] = charges
        for ref, charge in charges.items():
            self._add(ref, charge, 1)

    def prompt_computed(self, room: bytes, ref: WorkerRef) -> int:
        """Token 0 came; how many tokens the prompt had, 0 at a repeat."""
        charge = self._charges[room].pop(ref, None)
        if charge is None:
            return 0
        self._add(ref, charge, -1)
        return charge.num_tokens

    def end(self, room: bytes) -> None:
        """The attempt is over."""
        for ref, charge in self._charges.pop(room).items():
            self._add(ref, charge, -1)

    def refused(self, ref: WorkerRef, now: float) -> None:
        """The worker said that its queue is full."""
        self._full_until[ref] = now + FULL_WAIT_S

    def heard(self, loads: Loads) -> None:
        """Workers' newer loads: what is not ours is other balancers'."""
        if self.others.present:
            ours = Counter(ref for charges in self._charges.values() for ref in charges)
            self.others.heard(loads, ours)

    def pass_time(self, now: float) -> bool:
        """Whether workers may be asked again that were full."""
        over = [ref for ref, until in self._full_until.items() if now >= until]
        for ref in over:
            del self._full_until[ref]
        return bool(over)

    def _add(self, ref: WorkerRef, charge: _Charge, sign: int) -> None:
        changes = [(self.outstanding, charge.num_tokens)]
        if not charge.is_prefill:
            changes.append((self._seqs, 1))
        elif charge.is_large:
            changes.append((self._large, 1))
        else:
            changes.append((self._small, charge.num_tokens))
        for counter, amount in changes:
            counter[ref] += sign * amount
            if counter[ref] <= 0:
                del counter[ref]

    # --- what follows --------------------------------------------------------------------------

    def burden(self) -> Mapping[WorkerRef, int]:
        """Outstanding tokens by worker, with what other balancers have there."""
        return self.others.added_to(self.outstanding, len(self._charges))

    def takes_prompt(self, info: WorkerInfo, num_prompt: int) -> bool:
        """Whether a prefill worker shall be given such a prompt now."""
        ref, step = info.peer.ref, step_tokens(info)
        if ref in self._full_until:
            return False
        if num_prompt > step:
            return self._large[ref] < LARGE_AHEAD
        return self._small[ref] < STEPS_AHEAD * step

    def takes_sequence(self, info: WorkerInfo) -> bool:
        """Whether a decode worker shall be given one more answer to write now."""
        ref, limits = info.peer.ref, info.limits
        if ref in self._full_until:
            return False
        if not self._seqs[ref]:
            return True
        num_seqs = limits.max_num_seqs + max(1, int(SEQS_AHEAD * limits.max_num_seqs))
        capacity = limits.num_blocks * info.contract.block_size
        return self._seqs[ref] < num_seqs and self.outstanding[ref] < capacity

    def rooms(self) -> set[bytes]:
        """Attempts that were begun and are not over."""
        return set(self._charges)

    def validate(self) -> None:
        """Assert that the sums are those of the charges."""
        sums: tuple[Counter[WorkerRef], ...] = (Counter(), Counter(), Counter(), Counter())
        for charges in self._charges.values():
            for ref, charge in charges.items():
                small = charge.is_prefill and not charge.is_large
                sums[0][ref] += charge.num_tokens
                sums[1][ref] += charge.num_tokens if small else 0
                sums[2][ref] += charge.is_large
                sums[3][ref] += not charge.is_prefill
        kept = (self.outstanding, self._small, self._large, self._seqs)
        assert tuple(+c for c in sums) == tuple(+c for c in kept), (
            "outstanding work does not add up"
        )


def step_tokens(info: WorkerInfo) -> int:
    """Prompt tokens that the worker computes in one step at most."""
    return info.limits.max_num_batched_tokens or UNKNOWN_STEP_TOKENS

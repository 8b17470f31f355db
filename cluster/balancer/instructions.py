"""What the request machine asks of the balancer, and the ways in which a request can fail."""

from dataclasses import dataclass
from enum import Enum

from bootstrap.identity import Peer, Role
from bootstrap.messages import FailureReason, LegStats, TokenLogprobs
from bootstrap.sampling import FinishReason
from cluster.balancer.attempt import Attempt


class FailureKind(Enum):
    """What a client is told when there is no answer."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    UNAVAILABLE = "unavailable"  # no pair could take it
    OVERLOADED = "overloaded"  # the balancer's queue has no place for it
    PAUSED = "paused"  # an administrator holds new requests off
    WORKERS_FAILED = "workers_failed"  # every attempt broke
    NUMERICAL = "numerical"  # the model's own output is no number
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no answer. `inside` is for the log: it names workers and their faults.

    `retry_after_s` is when to ask again, where that is known.
    """

    kind: FailureKind
    detail: str
    inside: str = ""
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Instruction: send the attempt to its legs."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Deliver:
    """Instruction: these tokens come next; with `finish` they are the last.

    `logprobs` is parallel to `token_ids` where they were asked for; `prompt_logprobs`, one for each
    prompt token but the first, comes with the first token.
    """

    token_ids: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A leg told what it measured: prefill with token 0, decode with its last token."""

    role: Role
    stats: LegStats


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Instruction: forget the room and tell `aborts`, the legs not known to have ended."""

    attempt: Attempt
    aborts: tuple[Peer, ...]
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class Retry:
    """Instruction: find another pair; the last attempt broke for `reason`."""

    reason: FailureReason
    detail: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Instruction: tell the client that there is no (further) answer."""

    failure: Failure


Instruction = Dispatch | Deliver | EndAttempt | Retry | Fail

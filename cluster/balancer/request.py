"""One request: one sample of one prompt, from its first dispatch to its one outcome.

Pure: events and the time go in as method calls, instructions come out as values. It knows attempts,
legs and tokens, not text, sockets, or how a pair is chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bootstrap.errors import IllegalTransition
from bootstrap.identity import WorkerRef, short_room
from bootstrap.messages import FailureReason, RoomTokens
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.attempt import GAP_WAIT_S, Attempt, Leg, Suspicion
from cluster.balancer.instructions import (
    Deliver,
    Dispatch,
    EndAttempt,
    Fail,
    Failure,
    FailureKind,
    Instruction,
    Retry,
)
from cluster.balancer.policy import Pair, Size

CAUSE_WAIT_S = 0.3  # a leg that ended because the other did: how long to wait for the cause
MISSED_REPORTS = 2  # progress reports without the room, after which the worker lost it
MIN_MISSED_AGE_S = 1.0

GONE = "cancelled by the client"

_PEER_ABORTED = FailureReason.PEER_ABORTED
_FATAL = {
    FailureReason.BAD_REQUEST: FailureKind.INTERNAL,
    FailureReason.NUMERICAL: FailureKind.NUMERICAL,
}


class RequestState(Enum):
    """Where a request stands."""

    WAITING = "waiting"  # no attempt runs: a pair is wanted
    PREFILLING = "prefilling"  # dispatched to both legs, this attempt gave no token yet
    HANDING_OFF = "handing off"  # the bootstrap token is out, the decode leg gave none yet
    DECODING = "decoding"
    FINISHED = "finished"
    FAILED = "failed"


class RequestEvent(Enum):
    """What moves it."""

    DISPATCH = "dispatch"
    BOOTSTRAP = "bootstrap"
    TAKE_OVER = "take over"
    RETRY = "retry"
    FINISH = "finish"
    FAIL = "fail"


_S, _E = RequestState, RequestEvent
_ENDED = (_S.FINISHED, _S.FAILED)
_RUNNING = (_S.PREFILLING, _S.HANDING_OFF, _S.DECODING)

TRANSITIONS: dict[tuple[RequestState, RequestEvent], RequestState] = {
    (_S.WAITING, _E.DISPATCH): _S.PREFILLING,
    (_S.PREFILLING, _E.BOOTSTRAP): _S.HANDING_OFF,
    (_S.HANDING_OFF, _E.TAKE_OVER): _S.DECODING,
    **{(state, _E.RETRY): _S.WAITING for state in _RUNNING},
    **{(state, _E.FINISH): _S.FINISHED for state in (_S.WAITING, *_RUNNING)},
    **{(state, _E.FAIL): _S.FAILED for state in (_S.WAITING, *_RUNNING)},
}


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What is asked. `bootstrap_stop_ids` are valid once `sampling.min_tokens` tokens are out.

    `request_id` is for logs; `answer_id` is the client's call that it is a part of. `tenant` is who
    asks, for fairness; everybody is "" where there are no keys. `traceparent` is the W3C header of the
    client's own trace, if any.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    bootstrap_stop_ids: tuple[int, ...] = ()
    num_prompt_logprobs: int | None = None
    answer_id: str = ""
    tenant: str = ""
    traceparent: str = ""

    @property
    def size(self) -> Size:
        """What a first attempt asks of a pair."""
        return Size(len(self.prompt_token_ids), self.sampling.max_tokens)

    def missing_logprobs(self, deliver: Deliver, *, is_first: bool) -> str | None:
        """What was asked for and did not come with `deliver`, if anything."""
        num_logprobs = len(deliver.logprobs)
        if self.sampling.num_logprobs is not None and num_logprobs != len(deliver.token_ids):
            return f"{num_logprobs} of {len(deliver.token_ids)} log probabilities"
        if self.num_prompt_logprobs is not None and is_first and deliver.token_ids:
            num_wanted = len(self.prompt_token_ids) - 1
            if len(deliver.prompt_logprobs) != num_wanted:
                return f"{len(deliver.prompt_logprobs)} of {num_wanted} prompt log probabilities"
        return None


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How long and how often: attempts in all, waiting for a pair in all, silence of a leg."""

    max_attempts: int = 3
    pair_wait_s: float = 2.0
    silence_s: float = 30.0


@dataclass(slots=True)
class Request:
    """Invariant: an attempt exists exactly in the running states; ended requests take no event.

    Every method returns instructions in the order in which to carry them out. Events about a room
    that is not the present attempt's must not come here.
    """

    spec: RequestSpec
    rules: RetryRules
    deadline_at: float
    waiting_since: float
    state: RequestState = RequestState.WAITING
    attempt: Attempt | None = None
    num_attempts: int = 0
    num_broken: int = 0  # of these; an attempt that a full queue turned away did not break
    for_turn: bool = False  # while waiting: a pair will take it once it has done enough
    delivered: list[int] = field(default_factory=list)
    blamed: dict[WorkerRef, FailureReason] = field(default_factory=dict)
    prefers: WorkerRef | None = None  # computed the prompt, and may have it still
    _waited_s: float = 0.0
    _last_fault: str = ""
    _story: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the outcome is decided."""
        return self.state in _ENDED

    @property
    def size(self) -> Size:
        """What the next attempt asks of a pair."""
        num_left = self.spec.sampling.max_tokens - len(self.delivered)
        return Size(len(self.spec.prompt_token_ids) + len(self.delivered), num_left)

    # --- the balancer's side -------------------------------------------------------------------

    def dispatch(self, pair: Pair, room: bytes, now: float) -> list[Instruction]:
        """A pair was found: begin an attempt in `room`."""
        self._advance(_E.DISPATCH, f"{short_room(room)} at {pair.refs[0]} and {pair.refs[1]}")
        self.wait(for_turn=False, now=now)
        self.num_attempts += 1
        alone = self.size.num_output == 1
        offset = len(self.delivered)
        self.attempt = Attempt.begin(self.num_attempts, room, pair, offset, alone=alone, now=now)
        return [Dispatch(self.attempt)]

    def wait(self, *, for_turn: bool, now: float) -> None:
        """No pair takes it at present. Waiting for a turn is bounded by the deadline alone."""
        if not self.for_turn:
            self._waited_s += now - self.waiting_since
        self.waiting_since, self.for_turn = now, for_turn

    def cancel(self, detail: str = GONE) -> list[Instruction]:
        """The client went away, or somebody who may decided that its answer is not wanted."""
        return self._fail(FailureKind.CANCELLED, detail)

    def stop_hit(self) -> list[Instruction]:
        """A stop string is complete: nothing more is wanted."""
        if self.ended:
            return []
        self._advance(_E.FINISH, "stop string")
        return self._end_attempt(FailureReason.FINISHED)

    def abandon(self, detail: str) -> list[Instruction]:
        """The balancer itself stops."""
        return self._fail(FailureKind.UNAVAILABLE, detail)

    def tick(self, now: float) -> list[Instruction]:
        """Let time pass: deadline, waiting, suspicions, silence."""
        if self.ended:
            return []
        if now >= self.deadline_at:
            return self._fail(FailureKind.DEADLINE, "the request's deadline passed")
        attempt = self.attempt
        if attempt is None:
            if self.for_turn:
                return []
            if self._waited_s + now - self.waiting_since >= self.rules.pair_wait_s:
                detail = "no pair of workers can take the request"
                return self._fail(FailureKind.UNAVAILABLE, detail, self._last_fault)
            return []
        fault = attempt.unexplained_fault(now)
        if fault is not None:
            blamed = dict.fromkeys(attempt.refs, _PEER_ABORTED)
            return self._broken(_PEER_ABORTED, fault, blamed, now)
        leg = attempt.silent_leg(now, self.rules.silence_s)
        if leg is not None:
            detail = f"{leg.peer.ref} said nothing for {self.rules.silence_s:g} s"
            return self._lost(leg, detail, now)
        return []

    # --- the legs' side ------------------------------------------------------------------------

    def tokens(self, ref: WorkerRef, tokens: RoomTokens, now: float) -> list[Instruction]:
        """A leg produced tokens."""
        attempt, leg = self._leg(ref)
        if attempt is None or leg is None:
            return []
        leg.heard_at, leg.num_missed = now, 0
        leg.over = leg.over or tokens.finish is not None
        if leg is attempt.decode:
            attempt.decode_spoke = True
        merged = attempt.merge.push(tokens)
        self._watch_gap(attempt, now)
        num_left = self.spec.sampling.max_tokens - len(self.delivered)
        finish = merged.finish
        if len(merged.token_ids) >= num_left:
            finish = finish or FinishReason.LENGTH
        deliver = Deliver(
            merged.token_ids[:num_left],
            finish,
            merged.logprobs[:num_left],
            merged.prompt_logprobs,
        )
        if not deliver.token_ids and finish is None:
            return []
        missing = self.spec.missing_logprobs(deliver, is_first=not self.delivered)
        if missing is not None:
            return self._fail(FailureKind.INTERNAL, f"{ref}: {missing}")
        return self._deliver(attempt, deliver)

    def leg_failed(
        self, ref: WorkerRef, reason: FailureReason, detail: str, now: float
    ) -> list[Instruction]:
        """A leg ended without its answer."""
        attempt, leg = self._leg(ref)
        if attempt is None or leg is None:
            return []
        leg.over = True
        if leg is attempt.prefill and attempt.handed_off:
            return []
        text = f"{ref}: {reason.value}" + (f": {detail}" if detail else "")
        others = tuple(other.peer.ref for other in attempt.legs if other is not leg)
        if reason is FailureReason.DEADLINE:
            return self._fail(FailureKind.DEADLINE, text)
        if reason in _FATAL:
            return self._fail(_FATAL[reason], text)
        if reason is FailureReason.FINISHED:  # the prefill leg's last token is on its way
            attempt.suspicion = Suspicion(now + GAP_WAIT_S, text)
            return []
        if reason is FailureReason.PEER_ABORTED:
            attempt.suspicion = Suspicion(now + CAUSE_WAIT_S, text)
            return []
        if reason is FailureReason.QUEUE_FULL:
            return self._again(reason, text, _PEER_ABORTED, now)
        if reason is FailureReason.DRAINING:
            return self._drained(ref, text, _PEER_ABORTED, now)
        if reason is FailureReason.BALANCER_LOST:  # it is we who were not heard
            return self._broken(reason, text, {}, now)
        if reason is FailureReason.PEER_LOST:
            return self._broken(reason, text, dict.fromkeys(others, reason), now)
        return self._broken(reason, text, {ref: reason}, now)

    def worker_lost(
        self, ref: WorkerRef, detail: str, now: float, *, in_order: bool = False
    ) -> list[Instruction]:
        """A worker's incarnation is gone; `in_order` when it said goodbye after its last word."""
        attempt, leg = self._leg(ref)
        if attempt is None or leg is None:
            return []
        leg.over = True
        if leg is attempt.prefill and attempt.decode_spoke:
            return []
        if in_order:
            if leg is attempt.prefill and not attempt.awaits(leg):
                return []  # it handed off, or the decode leg says that it did not
            return self._drained(ref, f"{ref} left", FailureReason.PEER_LOST, now)
        return self._lost(leg, f"{ref} is gone: {detail}", now)

    def progress(self, ref: WorkerRef, *, named: bool, now: float) -> list[Instruction]:
        """A worker reported the rooms it holds; `named` when ours is among them."""
        attempt, leg = self._leg(ref)
        if attempt is None or leg is None:
            return []
        if named:
            leg.heard_at, leg.num_missed = now, 0
            return []
        if leg.over or not attempt.awaits(leg) or now - attempt.started_at < MIN_MISSED_AGE_S:
            return []
        leg.num_missed += 1
        if leg.num_missed < MISSED_REPORTS:
            return []
        leg.over = True
        detail = f"{ref} does not know the room"
        return self._broken(_PEER_ABORTED, detail, {ref: _PEER_ABORTED}, now)

    # --- moves ---------------------------------------------------------------------------------

    def _leg(self, ref: WorkerRef) -> tuple[Attempt | None, Leg | None]:
        attempt = self.attempt
        return attempt, None if attempt is None else attempt.leg_of(ref)

    def _deliver(self, attempt: Attempt, deliver: Deliver) -> list[Instruction]:
        self.delivered.extend(deliver.token_ids)
        if self.state is _S.PREFILLING and deliver.token_ids:
            self._advance(_E.BOOTSTRAP)
        if self.state is _S.HANDING_OFF and attempt.decode_spoke:
            self._advance(_E.TAKE_OVER)
        out: list[Instruction] = [deliver]
        if deliver.finish is not None:
            self._advance(_E.FINISH, deliver.finish.value)
            out += self._end_attempt(FailureReason.FINISHED)
        return out

    def _watch_gap(self, attempt: Attempt, now: float) -> None:
        """Tokens wait for one that is missing: it may be on its way, or lost."""
        if not attempt.merge.early:
            attempt.gap_since = None
        elif attempt.gap_since is None:
            attempt.gap_since = now

    def _lost(self, leg: Leg, detail: str, now: float) -> list[Instruction]:
        reason = FailureReason.PEER_LOST
        return self._broken(reason, detail, {leg.peer.ref: reason}, now)

    def _broken(
        self,
        reason: FailureReason,
        detail: str,
        blamed: Mapping[WorkerRef, FailureReason],
        now: float,
    ) -> list[Instruction]:
        """The attempt cannot end well: try another pair, if there may be another attempt."""
        self.blamed.update(blamed)
        self._last_fault = detail
        self.num_broken += 1
        if self.num_broken >= self.rules.max_attempts:
            is_bug = reason is FailureReason.INTERNAL
            kind = FailureKind.INTERNAL if is_bug else FailureKind.WORKERS_FAILED
            return self._fail(kind, f"attempt {self.num_attempts} broke: {detail}")
        told = reason if reason is FailureReason.PEER_LOST else _PEER_ABORTED
        return self._again(reason, detail, told, now)

    def _drained(
        self, ref: WorkerRef, detail: str, told: FailureReason, now: float
    ) -> list[Instruction]:
        """An engine that leaves is nobody's fault: another takes the request, at no attempt's cost."""
        self.blamed[ref] = FailureReason.DRAINING
        self._last_fault = detail
        return self._again(FailureReason.DRAINING, detail, told, now)

    def _again(
        self, reason: FailureReason, detail: str, told: FailureReason, now: float
    ) -> list[Instruction]:
        self._advance(_E.RETRY, detail)
        if self.attempt is not None and self.delivered:
            self.prefers = self.attempt.prefill.peer.ref
        self.waiting_since, self.for_turn = now, False
        return [*self._end_attempt(told), Retry(reason, detail)]

    def _fail(self, kind: FailureKind, detail: str, inside: str = "") -> list[Instruction]:
        if self.ended:
            return []
        self._advance(_E.FAIL, detail)
        reason = {
            FailureKind.CANCELLED: FailureReason.CANCELLED,
            FailureKind.DEADLINE: FailureReason.DEADLINE,
        }.get(kind, _PEER_ABORTED)
        return [*self._end_attempt(reason), Fail(Failure(kind, detail, inside))]

    def _end_attempt(self, reason: FailureReason) -> list[Instruction]:
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return []
        if reason is FailureReason.FINISHED and attempt.decode_spoke:
            attempt.prefill.over = True  # it handed off; all that is left there ends by itself
        aborts = tuple(leg.peer for leg in attempt.legs if not leg.over)
        return [EndAttempt(attempt, aborts, reason)]

    def _advance(self, event: RequestEvent, why: str = "") -> None:
        """Make a move of the table; raises IllegalTransition with the request's story."""
        target = TRANSITIONS.get((self.state, event))
        arrow = f"{self.state.value} -{event.value}-> {target.value if target else '?'}"
        self._story.append(f"{arrow} ({why})" if why else arrow)
        if target is None:
            raise IllegalTransition(f"request {self.spec.request_id}: {'; '.join(self._story)}")
        self.state = target

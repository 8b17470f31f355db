"""A load balancer reduced to what the engines see of it, with the solo run as its measure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import WorkerInfo
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    FailureReason,
    LegFailed,
    Message,
    PrefillDispatch,
    TokenBatch,
)
from bootstrap.sampling import FinishReason, SamplingParams
from engine.core import Post
from tests.support.cores import BALANCER, room
from tests.support.joined_memory import kv_of, solo_run

_FINAL = (FailureReason.DEADLINE, FailureReason.BAD_REQUEST, FailureReason.TOO_LARGE)


@dataclass(slots=True, eq=False)
class Attempt:
    """One try on one pair; tokens wait here until those before them have come."""

    room: bytes
    prefill: Peer
    decode: Peer | None
    offset: int
    waiting: dict[int, tuple[int, FinishReason | None]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Request:
    """A client's request, what the solo run puts out, and what was delivered so far."""

    prompt: tuple[int, ...]
    params: SamplingParams
    deadline_s: float
    expected: list[int]
    finish: FinishReason
    kv: list[int]
    delivered: list[int] = field(default_factory=list)
    num_attempts: int = 0
    attempt: Attempt | None = None
    outcome: str | None = None


class Balancer:
    """Every request has one outcome: `finished`, `cancelled` or a reason of failure.

    With `links_legs` it aborts both legs of a failed attempt; without, the engines must do it.
    """

    def __init__(self, rng: Random, *, max_attempts: int, links_legs: bool) -> None:
        self.me = BALANCER
        self.posts: list[Post] = []
        self.requests: list[Request] = []
        self.truth: dict[bytes, list[int]] = {}  # every room ever: the KV of its whole sequence
        self.max_attempts = max_attempts
        self.links_legs = links_legs
        self.takes_turns = False  # attempts of a request, among engines, instead of chance
        self._rng = rng
        self._members: dict[Role, dict[WorkerRef, Peer]] = {Role.PREFILL: {}, Role.DECODE: {}}

    # --- clients -------------------------------------------------------------------------------

    def submit(self, prompt: Sequence[int], params: SamplingParams, deadline_s: float) -> None:
        """A new request; it starts as soon as there is a pair."""
        expected, finish = solo_run(prompt, params)
        kv = kv_of([*prompt, *expected])
        request = Request(tuple(prompt), params, deadline_s, expected, finish, kv)
        self.requests.append(request)
        self._start(request)

    def cancel(self, request: Request) -> None:
        """The client goes away."""
        if request.attempt is not None:
            self._abort(request.attempt, FailureReason.CANCELLED)
        self._conclude(request, "cancelled")

    def pending(self) -> list[Request]:
        """Requests without an outcome."""
        return [request for request in self.requests if request.outcome is None]

    # --- the wire ------------------------------------------------------------------------------

    def receive(self, sender: Peer, message: Message) -> None:
        """Tokens and failures; progress reports are not needed here."""
        if isinstance(message, TokenBatch):
            for tokens in message.rooms:
                request = self.request_of(tokens.room)
                if request is not None and request.attempt is not None:
                    assert len(tokens.token_ids) == 1
                    entry = (tokens.token_ids[0], tokens.finish)
                    request.attempt.waiting.setdefault(tokens.position, entry)
                    self._flush(request, request.attempt)
        elif isinstance(message, LegFailed):
            request = self.request_of(message.room)
            if request is not None:
                self._attempt_failed(request, message.reason)

    def joined(self, info: WorkerInfo) -> None:
        """An engine is there: requests that wait for one may start."""
        self._members[info.role][info.peer.ref] = info.peer
        for request in self.pending():
            if request.attempt is None:
                self._start(request)

    def left(self, ref: WorkerRef, dead: bool) -> None:
        """An engine is gone; a prefill engine's leg is over once its token is here."""
        for members in self._members.values():
            members.pop(ref, None)
        for request in self.pending():
            attempt = request.attempt
            if attempt is None:
                continue
            lost = attempt.decode is not None and attempt.decode.ref == ref
            if attempt.prefill.ref == ref and len(request.delivered) == attempt.offset:
                lost = True  # nobody else will ever send the bootstrap token
            if lost:
                self._attempt_failed(request, FailureReason.PEER_LOST)

    # --- attempts ------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        prefills, decodes = (list(members.values()) for members in self._members.values())
        if not prefills or not decodes:
            return
        request.num_attempts += 1
        offset = len(request.delivered)
        prefill, decode = self._pick(prefills, request), None
        if request.params.max_tokens - offset > 1:
            decode = self._pick(decodes, request)
        attempt = Attempt(room(1000 + len(self.truth)), prefill, decode, offset)
        request.attempt = attempt
        self.truth[attempt.room] = request.kv
        common: dict[str, Any] = {
            "room": attempt.room,
            "request_id": f"r{self.requests.index(request)}",
            "attempt": request.num_attempts - 1,
            "deadline_s": request.deadline_s,
            "reply_to": self.me,
            "prompt_token_ids": (*request.prompt, *request.delivered),
            "sampling": request.params,
            "output_offset": offset,
        }
        self.posts.append(Post(prefill, PrefillDispatch(decode=decode, **common)))
        if decode is not None:
            self.posts.append(Post(decode, DecodeDispatch(prefill=prefill, **common)))

    def _pick(self, peers: list[Peer], request: Request) -> Peer:
        if self.takes_turns:
            return peers[(request.num_attempts - 1) % len(peers)]
        return self._rng.choice(peers)

    def request_of(self, room: bytes) -> Request | None:
        """The request whose present attempt has this room."""
        for request in self.requests:
            if request.attempt is not None and request.attempt.room == room:
                return request
        return None

    def _flush(self, request: Request, attempt: Attempt) -> None:
        while request.outcome is None and len(request.delivered) in attempt.waiting:
            token_id, finish = attempt.waiting.pop(len(request.delivered))
            request.delivered.append(token_id)
            num = len(request.delivered)
            assert request.delivered == request.expected[:num], f"token {num - 1} is wrong"
            if finish is not None:
                assert (num, finish) == (len(request.expected), request.finish)
                self._conclude(request, "finished")
                if num - 1 == attempt.offset and attempt.decode is not None:
                    end = AbortRoom(attempt.room, FailureReason.FINISHED)
                    self.posts.append(Post(attempt.decode, end))

    def _attempt_failed(self, request: Request, reason: FailureReason) -> None:
        assert request.attempt is not None
        if self.links_legs or reason is FailureReason.PEER_LOST:
            self._abort(request.attempt, FailureReason.PEER_ABORTED)
        request.attempt = None
        if reason in _FINAL or request.num_attempts >= self.max_attempts:
            self._conclude(request, reason.value)
        else:
            self._start(request)

    def _abort(self, attempt: Attempt, reason: FailureReason) -> None:
        legs = [attempt.prefill] if attempt.decode is None else [attempt.prefill, attempt.decode]
        self.posts.extend(Post(leg, AbortRoom(attempt.room, reason)) for leg in legs)

    def _conclude(self, request: Request, outcome: str) -> None:
        assert request.outcome is None, "a second outcome"
        request.outcome = outcome
        request.attempt = None

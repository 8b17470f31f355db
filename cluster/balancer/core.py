"""The balancer's pure core: every live request, its room, and who is asked to do what.

Messages, members, clients' wishes and the time go in; messages to workers and news for clients come
out. It draws no random bits and reads no clock, so a simulator runs the same code.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import Member, WorkerLoad
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    FailureReason,
    LegFailed,
    LegProgress,
    Message,
    PrefillDispatch,
    RoomTokens,
    TokenBatch,
    WriterStopped,
)
from cluster.balancer.attempt import Attempt
from cluster.balancer.instructions import (
    Deliver,
    Dispatch,
    EndAttempt,
    Fail,
    Instruction,
    Measured,
    Retry,
)
from cluster.balancer.members import Members
from cluster.balancer.policy import NoPair, select_pair
from cluster.balancer.request import GONE, Request
from cluster.balancer.strays import Strays


@dataclass(frozen=True, slots=True)
class Post:
    """Send `message` to `peer`."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class News:
    """Something happened to the request `key`; the client's side and the log want to know."""

    key: int
    request: Request
    what: Dispatch | Deliver | Measured | Fail | Retry | EndAttempt


class BalancerCore:
    """Every room belongs to one live request; a request that ended has none and is forgotten."""

    def __init__(self, me: Peer, members: Members, mint_room: Callable[[], bytes]) -> None:
        self.me = me
        self._mint_room = mint_room
        self.members = members
        self.strays = Strays()
        self.outstanding: Counter[WorkerRef] = Counter()  # tokens
        self._requests: dict[int, Request] = {}
        self._rooms: dict[bytes, int] = {}
        self._rooms_of: dict[WorkerRef, set[bytes]] = {}
        self._charges: dict[bytes, dict[WorkerRef, int]] = {}
        self._waiting: dict[int, None] = {}  # in order of arrival
        self._out: list[Post | News] = []

    def drain(self) -> list[Post | News]:
        """Instructions since the last call, in order."""
        out, self._out = self._out, []
        return out

    @property
    def num_requests(self) -> int:
        """Requests without an outcome."""
        return len(self._requests)

    @property
    def num_waiting(self) -> int:
        """Those of them that no worker has."""
        return len(self._waiting)

    # --- the clients' side ---------------------------------------------------------------------

    def submit(self, key: int, request: Request, now: float) -> None:
        """Take on a request under a new `key`."""
        self._requests[key] = request
        self._waiting[key] = None
        self._place(key, request, now)

    def requests(self) -> list[Request]:
        """Requests without an outcome, oldest first; for a look."""
        return list(self._requests.values())

    def keys_of(self, answer_id: str) -> list[int]:
        """The live requests of a client's call."""
        return [key for key, r in self._requests.items() if r.spec.answer_id == answer_id]

    def cancel(self, key: int, now: float, detail: str = GONE) -> None:
        """The client went away, or the rest of its answer is void. Ended ones: no-op."""
        request = self._requests.get(key)
        if request is not None:
            self._carry_out(key, request, request.cancel(detail), now)

    def stop_hit(self, key: int, now: float) -> None:
        """The client's text is complete. Ended ones: no-op."""
        request = self._requests.get(key)
        if request is not None:
            self._carry_out(key, request, request.stop_hit(), now)

    def abandon_all(self, detail: str, now: float) -> None:
        """The balancer stops: every request ends with an honest error."""
        for key, request in list(self._requests.items()):
            self._carry_out(key, request, request.abandon(detail), now)

    # --- the workers' side ---------------------------------------------------------------------

    def receive(self, sender: Peer, message: Message, now: float) -> None:
        """A worker's message; what names no live room of that worker is counted and dropped."""
        if isinstance(message, TokenBatch):
            for tokens in message.rooms:
                self._tokens(sender, tokens, now)
        elif isinstance(message, LegFailed):
            found = self._find(sender, message.room)
            if found is None:
                self.strays.count("room")
                return
            key, request = found
            failed = request.leg_failed(sender.ref, message.reason, message.detail, now)
            self._carry_out(key, request, failed, now)
        elif isinstance(message, LegProgress):
            self._progress(sender, message, now)
        elif not isinstance(message, WriterStopped):  # which only says that an abort arrived
            self.strays.count("kind")

    def joined(self, member: Member, now: float) -> None:
        """A worker registered."""
        self.members.joined(member)
        self._place_waiting(now)

    def left(self, ref: WorkerRef, detail: str, now: float) -> None:
        """A worker's incarnation is gone."""
        self.members.left(ref)
        for room in list(self._rooms_of.get(ref, ())):
            key = self._rooms.get(room)
            if key is not None:
                request = self._requests[key]
                self._carry_out(key, request, request.worker_lost(ref, detail, now), now)

    def loads(self, loads: tuple[tuple[WorkerRef, WorkerLoad], ...], now: float) -> None:
        """Workers' newer loads."""
        pools = self.members.pools
        for ref, load in loads:
            self.members.load(ref, load)
        if self.members.pools is not pools:
            self._place_waiting(now)

    def tick(self, now: float) -> None:
        """Let time pass; a few times a second."""
        for key, request in list(self._requests.items()):
            self._carry_out(key, request, request.tick(now), now)

    # --- inner ---------------------------------------------------------------------------------

    def _find(self, sender: Peer, room: bytes) -> tuple[int, Request] | None:
        key = self._rooms.get(room)
        if key is None:
            return None
        request = self._requests[key]
        attempt = request.attempt
        if attempt is None or attempt.leg_of(sender.ref) is None:
            return None
        return key, request

    def _tokens(self, sender: Peer, tokens: RoomTokens, now: float) -> None:
        found = self._find(sender, tokens.room)
        if found is None:
            self._stray(sender, tokens.room, now, over=tokens.finish is not None)
            return
        key, request = found
        attempt = request.attempt
        is_prefill = attempt is not None and sender.ref == attempt.prefill.peer.ref
        if is_prefill:
            self._uncharge(tokens.room, sender.ref)
        if tokens.stats is not None:
            role = Role.PREFILL if is_prefill else Role.DECODE
            self._out.append(News(key, request, Measured(role, tokens.stats)))
        self._carry_out(key, request, request.tokens(sender.ref, tokens, now), now)

    def _progress(self, sender: Peer, message: LegProgress, now: float) -> None:
        for room in message.stages:
            if self._find(sender, room) is None:
                self._stray(sender, room, now, over=False)
        for room in list(self._rooms_of.get(sender.ref, ())):
            key = self._rooms.get(room)
            if key is not None:
                request = self._requests[key]
                named = room in message.stages
                self._carry_out(
                    key, request, request.progress(sender.ref, named=named, now=now), now
                )

    def _stray(self, sender: Peer, room: bytes, now: float, *, over: bool) -> None:
        """A worker works for nobody: tell it so, unless that was its last word."""
        self.strays.count("room")
        if not over and self.strays.may_answer(room, now):
            self._out.append(Post(sender, AbortRoom(room, FailureReason.CANCELLED)))

    def _place_waiting(self, now: float) -> None:
        for key in list(self._waiting):
            self._place(key, self._requests[key], now)

    def _place(self, key: int, request: Request, now: float) -> None:
        found = select_pair(self.members.pools, self.outstanding, request.size, request.blamed)
        if not isinstance(found, NoPair):
            del self._waiting[key]
            instructions = request.dispatch(found, self._mint_room(), now)
            self._carry_out(key, request, instructions, now)
        elif found.overloaded:
            self._carry_out(key, request, request.no_capacity(), now)

    def _carry_out(
        self, key: int, request: Request, instructions: list[Instruction], now: float
    ) -> None:
        for what in instructions:
            if isinstance(what, Dispatch):
                self._dispatch(key, request, what.attempt, now)
            elif isinstance(what, EndAttempt):
                self._end_attempt(what)
            self._out.append(News(key, request, what))
        if request.ended:
            self._waiting.pop(key, None)
            self._requests.pop(key, None)
        elif instructions and isinstance(instructions[-1], Retry):
            self._waiting[key] = None
            self._place(key, request, now)

    def _dispatch(self, key: int, request: Request, attempt: Attempt, now: float) -> None:
        self._rooms[attempt.room] = key
        size, spec = request.size, request.spec
        charges = {attempt.prefill.peer.ref: size.num_prompt}
        if attempt.decode is not None:
            charges[attempt.decode.peer.ref] = size.total
        self._charges[attempt.room] = charges
        for ref, num_tokens in charges.items():
            self.outstanding[ref] += num_tokens
            self._rooms_of.setdefault(ref, set()).add(attempt.room)
        prompt = spec.prompt_token_ids + tuple(request.delivered)
        deadline_s = max(0.0, request.deadline_at - now)
        stops_count = len(request.delivered) >= spec.sampling.min_tokens
        prefill = PrefillDispatch(
            room=attempt.room,
            request_id=spec.request_id,
            attempt=attempt.number,
            deadline_s=deadline_s,
            reply_to=self.me,
            decode=None if attempt.decode is None else attempt.decode.peer,
            prompt_token_ids=prompt,
            sampling=spec.sampling,
            output_offset=attempt.output_offset,
            bootstrap_stop_ids=spec.bootstrap_stop_ids if stops_count else (),
            num_prompt_logprobs=None if request.delivered else spec.num_prompt_logprobs,
        )
        self._out.append(Post(attempt.prefill.peer, prefill))
        if attempt.decode is not None:
            decode = DecodeDispatch(
                room=attempt.room,
                request_id=spec.request_id,
                attempt=attempt.number,
                deadline_s=deadline_s,
                reply_to=self.me,
                prefill=attempt.prefill.peer,
                prompt_token_ids=prompt,
                sampling=spec.sampling,
                output_offset=attempt.output_offset,
            )
            self._out.append(Post(attempt.decode.peer, decode))

    def _end_attempt(self, end: EndAttempt) -> None:
        room = end.attempt.room
        for ref in list(self._charges[room]):
            self._uncharge(room, ref)
        del self._charges[room]
        del self._rooms[room]
        for ref in end.attempt.refs:
            rooms = self._rooms_of[ref]
            rooms.discard(room)
            if not rooms:
                del self._rooms_of[ref]
        for peer in end.aborts:
            self._out.append(Post(peer, AbortRoom(room, end.reason)))

    def _uncharge(self, room: bytes, ref: WorkerRef) -> None:
        num_tokens = self._charges[room].pop(ref, 0)
        self.outstanding[ref] -= num_tokens
        if self.outstanding[ref] <= 0:
            del self.outstanding[ref]

    def validate(self) -> None:
        """Assert what must hold between events."""
        rooms = {r.attempt.room: k for k, r in self._requests.items() if r.attempt is not None}
        assert rooms == self._rooms, "rooms and attempts disagree"
        assert self._charges.keys() == rooms.keys(), "a charge without a room"
        assert set(self._waiting) == {k for k, r in self._requests.items() if r.attempt is None}
        charged: Counter[WorkerRef] = Counter()
        for charges in self._charges.values():
            charged.update(charges)
        assert +charged == +self.outstanding, "outstanding tokens do not add up"
        for ref, held in self._rooms_of.items():
            assert held == {r for r, k in rooms.items() if ref in _refs(self._requests[k])}
        assert not any(request.ended for request in self._requests.values())


def _refs(request: Request) -> tuple[WorkerRef, ...]:
    return () if request.attempt is None else request.attempt.refs

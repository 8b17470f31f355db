"""One attempt: a room, its two legs, and the tokens that came from them out of order."""

from dataclasses import dataclass, field

from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import RoomTokens
from cluster.balancer.policy import Pair

GAP_WAIT_S = 1.0  # tokens after a missing one: how long the missing one may still come


@dataclass(slots=True)
class Leg:
    """What is known of one worker's part. `over` when it will say or do no more for the room."""

    peer: Peer
    heard_at: float
    num_missed: int = 0  # progress reports in a row that did not name the room
    over: bool = False


@dataclass(slots=True)
class Suspicion:
    """A fault that may explain itself: it counts when nothing better came by `until`."""

    until: float
    detail: str


@dataclass(slots=True)
class TokenMerge:
    """Output tokens by position: repeats are dropped, early ones wait. `next` only grows."""

    next: int
    early: dict[int, RoomTokens] = field(default_factory=dict)

    def push(self, tokens: RoomTokens) -> RoomTokens:
        """The tokens from `next` on that are complete now, and the finish if they reach it."""
        known = self.early.get(tokens.position)
        if known is None or _reach(known) < _reach(tokens):
            self.early[tokens.position] = tokens
        start, merged = self.next, RoomTokens(tokens.room, self.next, ())
        while self.early and min(self.early) <= self.next:
            more = self.early.pop(min(self.early))
            end = more.position + len(more.token_ids)
            if end < self.next:
                continue
            num_known = self.next - more.position
            merged = RoomTokens(
                room=tokens.room,
                position=start,
                token_ids=merged.token_ids + more.token_ids[num_known:],
                finish=more.finish,
                logprobs=merged.logprobs + more.logprobs[num_known:],
                prompt_logprobs=merged.prompt_logprobs or more.prompt_logprobs,
            )
            self.next = end
            if more.finish is not None:
                self.early.clear()
        return merged


def _reach(tokens: RoomTokens) -> tuple[int, bool]:
    return len(tokens.token_ids), tokens.finish is not None


@dataclass(slots=True)
class Attempt:
    """Invariant: tokens of positions below `merge.next` were delivered, and no others."""

    number: int
    room: bytes
    pair: Pair
    prefill: Leg
    decode: Leg | None  # None when only one more token is allowed
    started_at: float
    output_offset: int
    merge: TokenMerge
    decode_spoke: bool = False  # so it holds the handoff
    suspicion: Suspicion | None = None
    gap_since: float | None = None  # tokens wait for one that is missing

    @classmethod
    def begin(
        cls, number: int, room: bytes, pair: Pair, output_offset: int, *, alone: bool, now: float
    ) -> "Attempt":
        """Legs at `pair`; `alone` leaves the decode engine out."""
        return cls(
            number=number,
            room=room,
            pair=pair,
            prefill=Leg(pair.prefill.peer, now),
            decode=None if alone else Leg(pair.decode.peer, now),
            started_at=now,
            output_offset=output_offset,
            merge=TokenMerge(output_offset),
        )

    @property
    def legs(self) -> tuple[Leg, ...]:
        """The legs that were dispatched."""
        return (self.prefill,) if self.decode is None else (self.prefill, self.decode)

    @property
    def refs(self) -> tuple[WorkerRef, ...]:
        """Workers of the legs."""
        return tuple(leg.peer.ref for leg in self.legs)

    @property
    def handed_off(self) -> bool:
        """Whether the prefill leg has given all that it had to."""
        return self.decode_spoke and self.merge.next > self.output_offset

    def leg_of(self, ref: WorkerRef) -> Leg | None:
        """The leg on `ref`, if it has one."""
        return next((leg for leg in self.legs if leg.peer.ref == ref), None)

    def awaits(self, leg: Leg) -> bool:
        """Whether the attempt cannot end well without more from `leg`."""
        if leg is self.prefill:
            return not self.decode_spoke and self.merge.next == self.output_offset
        return True

    def silent_leg(self, now: float, silence_s: float) -> Leg | None:
        """A leg that is needed and has not been heard of for `silence_s`."""
        for leg in self.legs:
            if self.awaits(leg) and not leg.over and now - leg.heard_at >= silence_s:
                return leg
        return None

    def unexplained_fault(self, now: float) -> str | None:
        """A suspicion or a gap that has lasted too long."""
        if self.suspicion is not None and now >= self.suspicion.until:
            return self.suspicion.detail
        if self.gap_since is not None and now - self.gap_since >= GAP_WAIT_S:
            return f"output token {self.merge.next} did not come"
        return None

"""What a balancer and its engines hold at one moment, as JSON, and where they contradict each other.

Pure: readings go in, plain values come out. A room is told by its first 8 hex digits; comparisons use
all of it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bootstrap.identity import Peer, WorkerRef, short_room
from bootstrap.inspection import RoomReport
from bootstrap.membership import Member
from cluster.balancer.attempt import Attempt, Leg
from cluster.balancer.inspection import EngineLedger
from cluster.balancer.request import Request
from cluster.balancer.stories import Story

GRACE_S = 5.0  # news of a room may be on its way for so long
MAX_LISTED = 1000  # of the balancer's own requests

HERE, ENDED_HERE, NOBODY = "this balancer", "this balancer, which ended it", "nobody"

# States in which an engine holds a room that has ended: it waits for a peer, not for a balancer.
_AFTER_END = frozenset({"quarantined", "closing", "stopping", "committed"})
_NEEDS_DECODE = frozenset({"queued", "computing", "sending"})
_NEEDS_PREFILL = frozenset({"expected", "admitting", "receiving"})


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read, all of one moment but for a message's way. `engines` follow `members`."""

    me: Peer
    now: float
    members: Sequence[Member]
    engines: Sequence[EngineLedger]
    requests: Sequence[Request]
    ended_rooms: Mapping[bytes, Story]
    balancers: Collection[WorkerRef]  # others that live

    @property
    def live_rooms(self) -> dict[bytes, Request]:
        """The rooms of this balancer's attempts."""
        return {r.attempt.room: r for r in self.requests if r.attempt is not None}


# --- as JSON ---------------------------------------------------------------------------------


def engines_facts(readings: Readings) -> list[dict[str, Any]]:
    """Every member, what it answered, and all its rooms."""
    live = readings.live_rooms
    facts = []
    for member, ledger in zip(readings.members, readings.engines, strict=True):
        rooms = [
            {**room_facts(room), "claim": _claim(room, readings, live)} for room in ledger.rooms
        ]
        facts.append({**_member_facts(member), **_ledger_facts(ledger), "rooms": rooms})
    return facts


def room_facts(room: RoomReport) -> dict[str, Any]:
    """One room as its engine reported it."""
    progress = room.progress
    return {
        "room": short_room(room.room),
        "request_id": room.request_id,
        "attempt": room.attempt,
        "state": room.state,
        "waits_for": room.waits_for.value,
        "detail": room.detail,
        "balancer": None if room.balancer is None else str(room.balancer),
        "peer": None if room.peer is None else str(room.peer),
        "epoch": room.epoch,
        "age_s": round(room.age_s, 3),
        "in_state_s": round(room.in_state_s, 3),
        "pages": room.pages,
        "progress": {
            "prompt_tokens": progress.num_prompt_tokens,
            "computed_tokens": progress.num_computed_tokens,
            "sent_blocks": progress.num_sent_blocks,
            "output_tokens": progress.num_output_tokens,
        },
    }


def request_facts(request: Request, now: float) -> dict[str, Any]:
    """One of this balancer's own, as its machine has it."""
    spec, attempt = request.spec, request.attempt
    return {
        "id": spec.answer_id,
        "request_id": spec.request_id,
        "state": request.state.value,
        "attempt": request.num_attempts,
        "room": None if attempt is None else short_room(attempt.room),
        "legs": [] if attempt is None else [_leg_facts(attempt, leg, now) for leg in attempt.legs],
        "deadline_left_s": round(request.deadline_at - now, 3),
        "waiting_s": round(now - request.waiting_since, 3) if attempt is None else None,
        "prompt_tokens": len(spec.prompt_token_ids),
        "delivered_tokens": len(request.delivered),
        "max_tokens": spec.sampling.max_tokens,
    }


def _leg_facts(attempt: Attempt, leg: Leg, now: float) -> dict[str, Any]:
    return {
        "role": "prefill" if leg is attempt.prefill else "decode",
        "worker": str(leg.peer.ref),
        "heard_ago_s": round(now - leg.heard_at, 3),
        "over": leg.over,
    }


def _member_facts(member: Member) -> dict[str, Any]:
    info, load = member.info, member.load
    return {
        "worker": info.peer.ref.worker_id,
        "incarnation": info.peer.ref.incarnation,
        "role": info.role.value,
        "state": load.state.value,
        "endpoint": info.peer.endpoint,
        "host": info.host,
        "pid": info.pid,
        "transfer": {"backend": info.transfer.backend, "transport": info.transfer.transport},
        "counters": load.counters,
    }


def _ledger_facts(ledger: EngineLedger) -> dict[str, Any]:
    last = ledger.last
    facts: dict[str, Any] = {
        "answered": last is not None,
        "problem": ledger.problem or None,
        "took_s": round(ledger.took_s, 4),
        "complete": ledger.complete,
    }
    if last is None:
        return facts
    return {
        **facts,
        "num_pages": last.num_pages,
        "pages": last.pages,
        "num_rooms": last.num_rooms,
        "num_orphan_pages": last.num_orphan_pages,
        "orphans": [{"room": short_room(o.room), "pages": o.pages} for o in last.orphans],
    }


def _claim(room: RoomReport, readings: Readings, live: Mapping[bytes, Request]) -> str:
    """Who wants the room; `unknown` where the engine itself does not know whom it is for."""
    if room.room in live:
        return HERE
    if room.room in readings.ended_rooms:
        return ENDED_HERE
    if room.balancer is None:
        return "unknown"
    return f"balancer {room.balancer}" if room.balancer in readings.balancers else NOBODY


# --- where they contradict each other --------------------------------------------------------


def problems(readings: Readings) -> list[dict[str, Any]]:
    """Rooms that somebody holds and nobody wants, or wants and nobody holds; pages of no room."""
    checks = (_orphans, _unclaimed, _lost_legs, _single_legs)
    return [problem for check in checks for problem in check(readings)]


def _problem(kind: str, worker: WorkerRef, room: bytes, name: str, text: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "worker": str(worker),
        "room": short_room(room),
        "request_id": name,
        "text": text,
    }


def _orphans(readings: Readings) -> Iterator[dict[str, Any]]:
    for ledger in readings.engines:
        for orphan in () if ledger.last is None else ledger.last.orphans:
            text = ", ".join(f"{count} {state}" for state, count in orphan.pages.items())
            yield _problem("orphan", ledger.peer.ref, orphan.room, "", f"{text} pages of no room")


def _unclaimed(readings: Readings) -> Iterator[dict[str, Any]]:
    live = readings.live_rooms
    for ledger in readings.engines:
        for room in ledger.rooms:
            claim = _claim(room, readings, live)
            story = readings.ended_rooms.get(room.room)
            since_s = room.age_s
            if story is not None and story.ended_at is not None:
                since_s = readings.now - story.ended_at
            is_wanted = claim not in (NOBODY, ENDED_HERE) or room.state in _AFTER_END
            if not is_wanted and since_s > GRACE_S:
                text = f"{room.state} for {claim} (dispatched by {room.balancer})"
                yield _problem("unclaimed", ledger.peer.ref, room.room, room.request_id, text)


def _held(readings: Readings) -> dict[WorkerRef, set[bytes]]:
    """The rooms of each engine that told all of them."""
    return {e.peer.ref: {r.room for r in e.rooms} for e in readings.engines if e.complete}


def _lost_legs(readings: Readings) -> Iterator[dict[str, Any]]:
    """Legs that this balancer waits for and that their engine does not know."""
    held = _held(readings)
    for room, request in readings.live_rooms.items():
        attempt = request.attempt
        if attempt is None or readings.now - attempt.started_at <= GRACE_S:
            continue
        for leg in attempt.legs:
            waited_for = not leg.over and attempt.awaits(leg)
            if waited_for and room not in held.get(leg.peer.ref, {room}):
                text = "this balancer waits for a leg that its engine does not know"
                yield _problem("lost_leg", leg.peer.ref, room, request.spec.request_id, text)


def _single_legs(readings: Readings) -> Iterator[dict[str, Any]]:
    """Legs whose engine waits for an engine that does not know the room, or is no member."""
    held = _held(readings)
    present = {member.info.peer.ref for member in readings.members}
    for ledger in readings.engines:
        for room in ledger.rooms:
            peer = room.peer
            waits = room.state in _NEEDS_DECODE or room.state in _NEEDS_PREFILL
            if peer is None or not waits or room.age_s <= GRACE_S:
                continue
            if peer not in present:
                text = f"{room.state}, and its peer {peer} is no member"
            elif room.room not in held.get(peer, {room.room}):
                text = f"{room.state}, and its peer {peer} does not know the room"
            else:
                continue
            yield _problem("single_leg", ledger.peer.ref, room.room, room.request_id, text)

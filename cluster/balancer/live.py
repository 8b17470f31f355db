"""What the status page and `top` show, as one JSON value of one moment. Pure.

Nobody is asked for it: it is what the balancer knows anyhow, so it costs engines nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bootstrap.membership import Member
from cluster.balancer.attendance import Departure
from cluster.balancer.members import Reason
from cluster.balancer.pulse import Beat
from cluster.balancer.request import Request
from cluster.balancer.stories import Story

MAX_REQUESTS = 60  # running ones first, then the last that ended
MAX_ERRORS = 20
MAX_ENGINES = 256
MAX_FLOWS = 256


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that is looked at, read at `now` by the balancer's clock."""

    now: float
    model: str
    balancer: str
    reason: Reason | None
    members: Sequence[Member]
    departures: Iterable[Departure]
    requests: Sequence[Request]
    num_waiting: int
    stories: Sequence[Story]  # the latest first
    beat: Beat


def live_facts(look: Look) -> dict[str, Any]:
    """For programs; seconds count back from now."""
    return {
        "model": look.model,
        "balancer": look.balancer,
        "ready": look.reason is None,
        "reason": None if look.reason is None else look.reason.message,
        "requests": {
            "running": len(look.requests) - look.num_waiting,
            "waiting": look.num_waiting,
        },
        "beat": asdict(look.beat),
        "engines": [_engine(member) for member in look.members[:MAX_ENGINES]],
        "gone": [_gone(departure, look.now) for departure in look.departures],
        "flows": _flows(look.requests),
        "latest": [_request(story, look.now) for story in _latest(look.stories)],
        "errors": [_error(story, look.now) for story in _broken(look.stories)],
    }


def _engine(member: Member) -> dict[str, Any]:
    info, load = member.info, member.load
    return {
        "worker": info.peer.ref.worker_id,
        "incarnation": info.peer.ref.incarnation,
        "role": info.role.value,
        "state": load.state.value,
        "host": info.host,
        "transport": f"{info.transfer.backend} {info.transfer.transport}",
        "queued": load.num_queued,
        "running": load.num_running,
        "pages": load.pages,
        "retractions": load.counters.get("retractions", 0),
    }


def _gone(departure: Departure, now: float) -> dict[str, Any]:
    return {
        "worker": departure.ref.worker_id,
        "incarnation": departure.ref.incarnation,
        "role": departure.role and departure.role.value,
        "reason": departure.reason,
        "ago_s": round(now - departure.at, 1),
    }


def _flows(requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Running attempts per pair, and how many of them still hand off."""
    running: Counter[tuple[str, str]] = Counter()
    handing_off: Counter[tuple[str, str]] = Counter()
    for request in requests:
        attempt = request.attempt
        if attempt is not None:
            prefill, decode = (ref.worker_id for ref in attempt.pair.refs)
            running[prefill, decode] += 1
            handing_off[prefill, decode] += not attempt.decode_spoke
    return [
        {"prefill": prefill, "decode": decode, "running": count, "handing_off": handing_off[pair]}
        for pair, count in sorted(running.items())[:MAX_FLOWS]
        for prefill, decode in (pair,)
    ]


def _latest(stories: Sequence[Story]) -> list[Story]:
    running = [story for story in stories if not story.outcome]
    ended = [story for story in stories if story.outcome]
    return [*running, *ended][:MAX_REQUESTS]


def _request(story: Story, now: float) -> dict[str, Any]:
    place = story.places[-1] if story.places else None
    first = next((p for p in story.places if p.prefill is not None), None)
    ended_at = now if story.ended_at is None else story.ended_at
    return {
        "id": story.spec.answer_id,
        "request_id": story.spec.request_id,
        "outcome": story.outcome or None,
        "failed": story.failed,
        "prompt_tokens": story.num_prompt_tokens,
        "delivered_tokens": story.num_delivered,
        "attempts": len(story.places),
        "workers": [] if place is None else [ref.worker_id for ref in place.refs],
        "ttft_s": None if first is None else round(first.prefilled_at - story.arrived_at, 4),
        "took_s": round(ended_at - story.arrived_at, 3),
        "ago_s": round(now - story.arrived_at, 1),
    }


def _broken(stories: Sequence[Story]) -> list[Story]:
    broken = [s for s in stories if s.failed or any(place.broke for place in s.places)]
    return broken[:MAX_ERRORS]


def _error(story: Story, now: float) -> dict[str, Any]:
    broken = [place.broke for place in story.places if place.broke]
    text = story.outcome if story.failed else f"went on elsewhere after: {', '.join(broken)}"
    return {
        "id": story.spec.answer_id,
        "request_id": story.spec.request_id,
        "failed": story.failed,
        "text": text,
        "ago_s": round(now - (story.ended_at or story.arrived_at), 1),
    }

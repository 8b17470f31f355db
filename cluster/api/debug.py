"""`GET /debug/...`: what the balancer and its engines hold, and why. Who may ask is `access`'s to know.

Each route asks the engines themselves and waits for none of them longer than a short deadline.
"""

import time
from typing import Any

from fastapi import APIRouter, Request

from bootstrap.identity import WorkerRef
from cluster.api.errors import ApiError
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.request import Request as BalancerRequest
from cluster.balancer.snapshot import (
    MAX_LISTED,
    Readings,
    engines_facts,
    problems,
    request_facts,
    room_facts,
)
from cluster.balancer.spans import Span, spans_of
from cluster.balancer.stories import MAX_ENDED, Story
from cluster.balancer.verdict import verdict

router = APIRouter(prefix="/debug")

MAX_FOUND = 16  # a client may use one id for many calls


@router.get("/ledger")
async def ledger(request: Request) -> dict[str, Any]:
    """Every page by state and room on every engine, and what contradicts what."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    core = dispatcher.core
    members = list(core.members)
    began_at = time.monotonic()
    engines = await dispatcher.ledgers.ask_all([member.info.peer for member in members])
    now = time.monotonic()
    readings = Readings(
        me=core.me,
        now=now,
        members=members,
        engines=engines,
        requests=core.requests(),
        ended_rooms=dispatcher.stories.ended_rooms(),
        balancers=dispatcher.attendance.balancers,
    )
    reason = dispatcher.unready_reason()
    own = [request_facts(r, now) for r in readings.requests[:MAX_LISTED]]
    return {
        "balancer": str(core.me.ref),
        "model": dispatcher.settings.model_name,
        "took_s": round(now - began_at, 4),
        "ready": reason is None,
        "reason": None if reason is None else reason.message,
        "num_pairs": len(core.members.pairs()),
        "refusals": [
            {"prefill": r.prefill, "decode": r.decode, "differences": list(r.differences)}
            for r in core.members.refusals
        ],
        "engines": engines_facts(readings),
        "balancers": sorted(str(ref) for ref in dispatcher.attendance.balancers),
        "departures": [
            {
                "worker": str(gone.ref),
                "role": gone.role and gone.role.value,
                "reason": gone.reason,
                "dead": gone.dead,
                "ago_s": round(now - gone.at, 3),
            }
            for gone in dispatcher.attendance.departures.values()
        ],
        "num_requests": core.num_requests,
        "num_waiting": core.num_waiting,
        "requests": own,
        "wire": dispatcher.wire_counts(),
        "problems": problems(readings),
    }


@router.get("/requests/{name:path}")
async def story(name: str, request: Request) -> dict[str, Any]:
    """One request by its answer's id or its X-Request-Id: what happened, and why it is where it is."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    found = dispatcher.stories.find(name)
    if not found:
        text = f"No request {name!r} runs here or is among the last {MAX_ENDED} that ended."
        raise ApiError(404, text, code="unknown_request")
    return {
        "name": name,
        "num_found": len(found),
        "requests": [await _told(dispatcher, each) for each in found[:MAX_FOUND]],
    }


async def _told(dispatcher: Dispatcher, story: Story) -> dict[str, Any]:
    legs = await _legs(dispatcher, story)
    now = time.monotonic()
    live = None if story.outcome else _live(dispatcher, story)
    state = None if live is None else request_facts(live, now)
    facts = story.facts(now)
    spans = [_span(span, story) for span in spans_of(story, dispatcher.settings.model_name, now)]
    return {
        **facts,
        "spans": spans,
        "now": state,
        "legs": legs,
        "verdict": verdict(facts, state, legs),
    }


def _span(span: Span, story: Story) -> dict[str, Any]:
    return {
        "name": span.name,
        "parent": span.parent,
        "from_s": round(span.started_at - story.arrived_at, 6),
        "to_s": round(span.ended_at - story.arrived_at, 6),
        "attributes": span.attributes,
        "error": span.error or None,
    }


def _live(dispatcher: Dispatcher, story: Story) -> BalancerRequest | None:
    return next((r for r in dispatcher.core.requests() if r.spec is story.spec), None)


async def _legs(dispatcher: Dispatcher, story: Story) -> list[dict[str, Any]]:
    """What the engines of the last attempt say of its room."""
    if not story.places:
        return []
    place = story.places[-1]
    by_ref = {peer.ref: peer for peer in dispatcher.peers()}
    asked = [by_ref[ref] for ref in place.refs if ref in by_ref]
    answers = {e.peer.ref: e for e in await dispatcher.ledgers.ask_all(asked, place.room)}

    def leg(role: str, ref: WorkerRef) -> dict[str, Any]:
        answer = answers.get(ref)
        last = None if answer is None else answer.last
        room = answer.rooms[0] if answer is not None and answer.rooms else None
        return {
            "role": role,
            "worker": str(ref),
            "answered": last is not None,
            "problem": "it is no member" if answer is None else answer.problem or None,
            "room": None if room is None else room_facts(room),
            "page_indices": [] if last is None else list(last.page_indices),
        }

    return [leg(role, ref) for role, ref in zip(("prefill", "decode"), place.refs, strict=False)]

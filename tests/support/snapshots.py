"""Readings of a small cluster as a balancer takes them, for tests of what is made of them."""

from typing import Any

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.inspection import LedgerReport, Orphan, RoomReport
from bootstrap.sampling import SamplingParams
from cluster.balancer.inspection import EngineLedger
from cluster.balancer.policy import Pair
from cluster.balancer.request import Request, RequestSpec, RetryRules
from cluster.balancer.snapshot import Readings, engines_facts, problems, request_facts
from cluster.balancer.stories import Story
from tests.support.members import member

NOW = 100.0
ME = Peer(WorkerRef("lb", "f" * 16), "tcp://127.0.0.1:9")
P = member("p", Role.PREFILL, endpoint="tcp://127.0.0.1:1")
D = member("d", Role.DECODE, endpoint="tcp://127.0.0.1:2")
P_REF, D_REF = P.info.peer.ref, D.info.peer.ref


def a_room(number: int) -> bytes:
    """A room whose short name is its number."""
    return number.to_bytes(4, "big") + bytes(12)


def held(number: int, state: str, **fields: Any) -> RoomReport:
    """What an engine says of a room that this balancer gave it 20 s ago."""
    values = {
        "request_id": f"r{number}",
        "attempt": 1,
        "balancer": ME.ref,
        "age_s": 20.0,
        "in_state_s": 20.0,
        "pages": {"in_use": 2},
        **fields,
    }
    return RoomReport(a_room(number), state, **values)


def ledger(who: Any, *rooms: RoomReport, orphans: tuple[Orphan, ...] = (), **fields: Any):
    """A complete answer of an engine with 64 pages."""
    num_orphans = sum(sum(orphan.pages.values()) for orphan in orphans)
    num_held = sum(sum(room.pages.values()) for room in rooms) + num_orphans
    pages = {"free": 64 - num_held, "in_use": num_held}
    report = LedgerReport(
        bytes(16), 64, pages, len(rooms), rooms, num_orphan_pages=num_orphans, orphans=orphans
    )
    values = {"last": report, "rooms": rooms, "complete": True, **fields}
    return EngineLedger(who.info.peer, 0.01, **values)


def silent(who: Any) -> EngineLedger:
    """An engine that said nothing."""
    return EngineLedger(who.info.peer, 2.0, problem="no answer within 2 s")


def a_request(number: int, started_at: float = NOW - 20.0) -> Request:
    """A request that runs in room `number` on P and D."""
    spec = RequestSpec(f"r{number}", (1, 2, 3), SamplingParams(seed=0, max_tokens=4), answer_id="a")
    request = Request(spec, RetryRules(), NOW + 60.0, started_at)
    request.dispatch(Pair(P.info, D.info), a_room(number), started_at)
    return request


def readings(*engines: EngineLedger, requests: tuple[Request, ...] = (), **fields: Any) -> Readings:
    """Of P and D, in that order, unless other `members` are given."""
    values: dict[str, Any] = {
        "members": (P, D),
        "ended_rooms": {},
        "balancers": (),
        **fields,
    }
    return Readings(me=ME, now=NOW, engines=engines, requests=requests, **values)


def ended_story(number: int, ended_at: float) -> Story:
    """A request that ended well in room `number`."""
    story = Story(a_request(number).spec, NOW - 30.0)
    story.outcome, story.ended_at = "stop", ended_at
    return story


def snapshot_of(seen: Readings, **fields: Any) -> dict[str, Any]:
    """What `/debug/ledger` gives of a cluster that serves."""
    return {
        "balancer": str(ME.ref),
        "model": "tiny",
        "took_s": 0.01,
        "ready": True,
        "reason": None,
        "num_pairs": 1,
        "refusals": [],
        "engines": engines_facts(seen),
        "balancers": [],
        "departures": [],
        "num_requests": len(seen.requests),
        "num_waiting": 0,
        "requests": [request_facts(request, seen.now) for request in seen.requests],
        "wire": {"received": 5, "dropped": 0},
        "problems": problems(seen),
        **fields,
    }

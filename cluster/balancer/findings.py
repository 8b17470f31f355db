"""What is wrong in a snapshot of the cluster: each finding says what, why it matters and what to do.

Pure functions of the JSON that `/debug/ledger` gives; they ask nobody. Wires and lives have a file of
their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONG_WAIT_S = 30.0
LONG_QUEUE_S = 30.0
LONG_QUARANTINE_S = 30.0

Snapshot = Mapping[str, Any]

_OWN_TURN = ("turn", "sequences", "pages")  # waits that more capacity would shorten
_NO_FAULT = ("nothing", "writer", "settling", *_OWN_TURN)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for people. What is only `note` is worth knowing and breaks nothing by itself."""

    kind: str
    what: str
    why: str
    next: str
    note: bool = False


Check = Callable[[Snapshot], Iterator[Finding]]


def not_ready(snapshot: Snapshot) -> Iterator[Finding]:
    """Requests would fail now."""
    if not snapshot["ready"]:
        yield Finding(
            "not_ready",
            f"requests cannot be served: {snapshot['reason']}",
            "clients get 503",
            "see the other findings; `pdserve status` shows who is missing",
        )


def silent_engines(snapshot: Snapshot) -> Iterator[Finding]:
    """Engines that did not answer in time."""
    for engine in snapshot["engines"]:
        if not engine["answered"]:
            where = f"pid {engine['pid']} on {engine['host']}" if engine["pid"] else "its host"
            yield Finding(
                "no_answer",
                f"{engine['worker']} does not answer: {engine['problem']}",
                "its rooms make no progress while it is stopped, cut off, or in one long step",
                f"look at {where}; a dead or stopped one is replaced when its lease ends",
            )
        elif not engine["complete"]:
            yield Finding(
                "incomplete",
                f"{engine['worker']} holds {engine['num_rooms']} rooms; {len(engine['rooms'])} were read",
                "the others are not checked here",
                "ask again when less is queued",
                note=True,
            )


def page_sums(snapshot: Snapshot) -> Iterator[Finding]:
    """Pools whose pages by state are not the pool."""
    for engine in answering(snapshot):
        total = sum(engine["pages"].values())
        if total != engine["num_pages"]:
            yield Finding(
                "page_sum",
                f"{engine['worker']} counts {total} pages of {engine['num_pages']}",
                "its ledger contradicts itself: a page may be used twice or never again",
                "this is a bug of pdserve: keep `pdserve doctor --json`, then restart the engine",
            )


def orphans(snapshot: Snapshot) -> Iterator[Finding]:
    """Pages that outlived their room."""
    for engine in answering(snapshot):
        if engine["num_orphan_pages"]:
            rooms = ", ".join(orphan["room"] for orphan in engine["orphans"][:4])
            yield Finding(
                "orphan",
                f"{engine['worker']} holds {engine['num_orphan_pages']} pages of no room ({rooms})",
                "nobody will ever give them back: the pool shrinks",
                "this is a bug of pdserve: keep `pdserve doctor --json`, then restart the engine",
            )


_PROBLEMS = {
    "unclaimed": (
        "it computes or keeps pages for nobody",
        "it is told to end it within seconds; if it stays, its messages to and from the balancer get lost",
    ),
    "lost_leg": (
        "the request stands still",
        "another attempt follows within seconds; see `pdserve doctor REQUEST_ID`",
    ),
    "single_leg": (
        "one engine waits for another that will not come",
        "it ends at the request's deadline at the latest; see both engines' logs for the room",
    ),
}


def contradictions(snapshot: Snapshot) -> Iterator[Finding]:
    """Rooms about which the pools and this balancer disagree."""
    for problem in snapshot["problems"]:
        if problem["kind"] in _PROBLEMS:
            why, what_next = _PROBLEMS[problem["kind"]]
            name = problem["request_id"] or "a request"
            what = f"{problem['worker']}, room {problem['room']} of {name}: {problem['text']}"
            yield Finding(problem["kind"], what, why, what_next)


def long_quarantines(snapshot: Snapshot) -> Iterator[Finding]:
    """Pages that wait for a writer that says nothing."""
    for engine in answering(snapshot):
        held = [
            room
            for room in engine["rooms"]
            if room["waits_for"] == "writer" and room["in_state_s"] > LONG_QUARANTINE_S
        ]
        for peer in sorted({str(room["peer"]) for room in held}):
            rooms = [room for room in held if str(room["peer"]) == peer]
            num_pages = sum(sum(room["pages"].values()) for room in rooms)
            longest = max(room["in_state_s"] for room in rooms)
            yield Finding(
                "quarantine",
                f"{engine['worker']} keeps {num_pages} pages from use for {longest:.0f} s:"
                f" {peer} does not say that it stopped writing",
                "they cannot be given to others while a write could still land in them",
                f"look at {peer.partition('@')[0]}; its end ends the quarantine",
            )


def stuck_rooms(snapshot: Snapshot) -> Iterator[Finding]:
    """Rooms that have waited long for a peer, and long queues."""
    for engine in answering(snapshot):
        queued = []
        for room in engine["rooms"]:
            if room["waits_for"] in _OWN_TURN and room["in_state_s"] > LONG_QUEUE_S:
                queued.append(room)
            elif room["waits_for"] not in _NO_FAULT and room["in_state_s"] > LONG_WAIT_S:
                name = room["request_id"] or "a request"
                yield Finding(
                    "stuck",
                    f"{engine['worker']}, room {room['room']} of {name}:"
                    f" {room['state']} for {room['in_state_s']:.0f} s, {room['detail']}",
                    "its client waits, and its pages are of no use to others",
                    f"see `pdserve doctor {room['request_id'] or 'REQUEST_ID'}`, and the peer's log",
                )
        if queued:
            longest = max(queued, key=lambda room: room["in_state_s"])
            yield Finding(
                "long_queue",
                f"{engine['worker']}: rooms that queue for over {LONG_QUEUE_S:.0f} s: {len(queued)};"
                f" the longest: {longest['detail']}",
                "time to first token grows without a fault: there is more work than engines",
                f"add {engine['role']} engines, or more pages (--num-blocks)",
                note=True,
            )


def waiting_requests(snapshot: Snapshot) -> Iterator[Finding]:
    """Requests for which no pair is found."""
    waiting = [r["waiting_s"] for r in snapshot["requests"] if r["waiting_s"] is not None]
    if waiting:
        yield Finding(
            "waiting",
            f"requests that wait for a pair: {snapshot['num_waiting']}, the longest {max(waiting):.1f} s",
            "time to first token grows, and those whose time is over end with an error",
            "if all pairs serve (`pdserve status`), there is more work than engines: add some",
            note=True,
        )


def answering(snapshot: Snapshot) -> Sequence[Mapping[str, Any]]:
    """The engines that told their ledgers."""
    return [engine for engine in snapshot["engines"] if engine["answered"]]


CHECKS: tuple[Check, ...] = (
    not_ready,
    silent_engines,
    page_sums,
    orphans,
    contradictions,
    long_quarantines,
    stuck_rooms,
    waiting_requests,
)

"""What is wrong between the processes: pairs that disagree, lives that overlap, messages that are lost.

Pure functions of the JSON that `/debug/ledger` gives, and of what a supervisor sees.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.balancer.findings import CHECKS, Check, Finding, Snapshot, answering

SILENT_LEG_S = 10.0  # engines report each of their rooms once a second
CLOCK_SKEW_S = 5.0  # both legs are dispatched at once
DEPARTURE_S = 600.0

_MEANING = {
    "undecodable": (
        "somebody sends what is no message of this version, or is no engine at all",
        "compare `pdserve --version` on all hosts, and see who can reach the port",
    ),
    "handshakes_failed": (
        "somebody without this cluster's secret connects",
        "compare the secret files of all hosts; a port scan does the same",
    ),
    "misaddressed": (
        "somebody writes to an earlier life of this process",
        "harmless after a restart; if it grows, see which peer still names the old incarnation",
    ),
    "dropped": (
        "a queue was full or a peer gone: rooms ended by a report or a deadline instead",
        "if it grows, see whether the process or its network is overloaded",
    ),
    "oversized": (
        "a message was larger than a frame may be: its room got no answer",
        "ask for fewer prompt log probabilities in one request",
    ),
    "unreachable": ("an endpoint is no address", "see --bind-host of the engine that it names"),
    "handler_errors": (
        "a message could not be taken: a bug of pdserve",
        "see the process's log for the traceback",
    ),
    "num_failed": (
        "writes of KV pages failed: their requests went to another pair",
        "see the engine's log for the transport's error, and the peer's life",
    ),
}
_SERIOUS = frozenset({"oversized", "handler_errors"})


def refused_pairs(snapshot: Snapshot) -> Iterator[Finding]:
    """Pairs that cannot serve, by the fields that differ."""
    by_fields: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for refusal in snapshot["refusals"]:
        pair = f"{refusal['prefill']} and {refusal['decode']}"
        by_fields[tuple(refusal["differences"])].append(pair)
    for differences, pairs in by_fields.items():
        more = f" and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        yield Finding(
            "refused_pair",
            f"{pairs[0]}{more} cannot serve together: {'; '.join(differences)}",
            "pages of one mean something else to the other",
            "start both with the same model and settings",
            note=snapshot["num_pairs"] > 0,
        )


def lives(snapshot: Snapshot) -> Iterator[Finding]:
    """Two lives of one worker, or two workers at one address."""
    for key, what in (("worker", "lives of"), ("endpoint", "engines at")):
        for value, count in Counter(engine[key] for engine in snapshot["engines"]).items():
            if count > 1:
                yield Finding(
                    "lives",
                    f"{count} {what} {value} are members at once",
                    "messages may reach the wrong one, which drops them",
                    "end one of them; each engine needs a name and an address of its own",
                )


def departures(snapshot: Snapshot) -> Iterator[Finding]:
    """Engines and balancers that left without a goodbye and have no successor."""
    present = {engine["worker"] for engine in snapshot["engines"]}
    present |= {ref.partition("@")[0] for ref in (snapshot["balancer"], *snapshot["balancers"])}
    for gone in snapshot["departures"]:
        name = gone["worker"].partition("@")[0]
        said_goodbye = gone["reason"] in ("unregistered", "replaced")
        if name in present or said_goodbye or gone["ago_s"] > DEPARTURE_S:
            continue
        if gone["role"] == "balancer":
            why = "its clients lost their streams, and engines end its rooms"
        elif gone["dead"]:
            why = "its requests went to others, which have more to do"
        else:
            why = "its requests went to others, and pages that it may write stay in quarantine"
        yield Finding(
            "departure",
            f"{gone['worker']} left {gone['ago_s']:.0f} s ago ({gone['reason']}) and is not back",
            why,
            "see its log, or whether its process is stopped or its host cut off",
        )


def silent_legs(snapshot: Snapshot) -> Iterator[Finding]:
    """Legs whose engine answers here, holds the room, and yet reports nothing of it."""
    held = {
        (f"{engine['worker']}@{engine['incarnation'][:6]}", room["room"])
        for engine in answering(snapshot)
        for room in engine["rooms"]
    }
    for request in snapshot["requests"]:
        for leg in request["legs"]:
            is_held = (leg["worker"], request["room"]) in held
            if is_held and not leg["over"] and leg["heard_ago_s"] > SILENT_LEG_S:
                yield Finding(
                    "silent_leg",
                    f"{leg['worker']} holds {request['request_id']} and has reported nothing of it"
                    f" for {leg['heard_ago_s']:.0f} s",
                    "reports are due each second: messages get lost, or a machine was suspended",
                    "compare the wire counters of both, and the hosts' clocks and load",
                )


def clocks(snapshot: Snapshot) -> Iterator[Finding]:
    """Rooms that are much older on one engine than on the other: both heard of them at once."""
    ages: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for engine in answering(snapshot):
        for room in engine["rooms"]:
            if room["balancer"] is not None:
                ages[room["room"]].append((room["age_s"], engine["worker"]))
    for name, known in ages.items():
        youngest, oldest = min(known), max(known)
        if oldest[0] - youngest[0] > CLOCK_SKEW_S:
            yield Finding(
                "clock",
                f"room {name} is {oldest[0]:.0f} s old on {oldest[1]}"
                f" and {youngest[0]:.0f} s on {youngest[1]}",
                "a dispatch came late, or one host's clock stood still: deadlines differ",
                "see whether a host was suspended or overloaded",
                note=True,
            )


def counters(snapshot: Snapshot) -> Iterator[Finding]:
    """Counts of messages and writes that should stay at 0."""
    said = {snapshot["balancer"]: snapshot["wire"]}
    for engine in snapshot["engines"]:
        said[engine["worker"]] = {
            name.removeprefix("wire_").removeprefix("transfer_"): count
            for name, count in engine["counters"].items()
        }
    for kind, (why, what_next) in _MEANING.items():
        having = {who: counts[kind] for who, counts in said.items() if counts.get(kind)}
        if having:
            text = ", ".join(f"{who} {count}" for who, count in having.items())
            note = kind not in _SERIOUS
            yield Finding("counter", f"{kind} since the start: {text}", why, what_next, note)


def supervision(workers: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Workers that a supervisor cannot keep alive; `workers` are its rows."""
    for worker in workers:
        if worker["state"] != "serving" and worker["num_restarts"]:
            yield Finding(
                "restarts",
                f"{worker['worker_id']} is {worker['state']} after {worker['num_restarts']} restarts:"
                f" {worker['last_error'] or 'no error is known'}",
                "it does not serve, and its partners have nobody to pair with",
                "see its log; the error is the last thing that it said",
            )


ALL_CHECKS: tuple[Check, ...] = (
    *CHECKS,
    refused_pairs,
    lives,
    departures,
    silent_legs,
    clocks,
    counters,
)


def findings(snapshot: Snapshot, workers: Sequence[Mapping[str, Any]] = ()) -> list[Finding]:
    """Everything that is wrong, then what is worth knowing."""
    found = [finding for check in ALL_CHECKS for finding in check(snapshot)]
    found += supervision(workers)
    return sorted(found, key=lambda finding: finding.note)

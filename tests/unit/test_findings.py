"""What the doctor finds in made-up snapshots: each finding once, and none where all is well."""

from typing import Any

import pytest

from bootstrap.identity import Role, WorkerRef
from bootstrap.inspection import Orphan, Wait
from cluster.balancer.findings import Finding
from cluster.balancer.wire_findings import findings
from tests.support.members import member
from tests.support.snapshots import (
    D_REF,
    NOW,
    P_REF,
    D,
    P,
    a_request,
    a_room,
    held,
    ledger,
    readings,
    silent,
    snapshot_of,
)


def running(**changes: Any) -> dict[str, Any]:
    """A sound cluster with one request."""
    engines = (
        ledger(P, held(1, "sending", peer=D_REF, in_state_s=0.5)),
        ledger(D, held(1, "receiving", peer=P_REF, in_state_s=0.5)),
    )
    request = a_request(1)
    assert request.attempt is not None
    for leg in request.attempt.legs:
        leg.heard_at = NOW - 0.5
    return snapshot_of(readings(*engines, requests=(request,)), **changes)


def the_one(snapshot: dict[str, Any], kind: str) -> Finding:
    """The only finding, which is of `kind` and says what, why and what next."""
    (finding,) = findings(snapshot)
    assert finding.kind == kind
    assert finding.what
    assert finding.why
    assert finding.next
    return finding


def test_a_sound_cluster_has_no_finding() -> None:
    assert findings(running()) == []
    assert findings(snapshot_of(readings(ledger(P), ledger(D)))) == []


def test_a_cluster_that_is_not_ready_says_why() -> None:
    finding = the_one(running(ready=False, reason="no ready decode worker"), "not_ready")
    assert "no ready decode worker" in finding.what
    assert not finding.note


def test_an_engine_without_an_answer() -> None:
    finding = the_one(snapshot_of(readings(silent(P), ledger(D))), "no_answer")
    assert finding.what == "p does not answer: no answer within 2 s"
    assert "pid 1 on localhost" in finding.next


def test_an_engine_with_more_rooms_than_were_read() -> None:
    finding = the_one(snapshot_of(readings(ledger(P, complete=False), ledger(D))), "incomplete")
    assert finding.note


def test_pages_that_do_not_add_up() -> None:
    snapshot = running()
    snapshot["engines"][0]["pages"]["free"] -= 1
    assert the_one(snapshot, "page_sum").what == "p counts 63 pages of 64"


def test_pages_of_no_room() -> None:
    orphans = (Orphan(a_room(5), {"in_use": 3}),)
    finding = the_one(snapshot_of(readings(ledger(P, orphans=orphans), ledger(D))), "orphan")
    assert finding.what == "p holds 3 pages of no room (00000005)"
    assert not finding.note


@pytest.mark.parametrize("kind", ["unclaimed", "lost_leg", "single_leg"])
def test_what_the_pools_disagree_about(kind: str) -> None:
    problem = {"kind": kind, "worker": "p@000000", "room": "12345678", "request_id": "abc"}
    finding = the_one(running(problems=[{**problem, "text": "queued"}]), kind)
    assert finding.what == "p@000000, room 12345678 of abc: queued"


def test_a_long_quarantine_names_its_writer_once() -> None:
    rooms = [
        held(n, "quarantined", peer=P_REF, waits_for=Wait.WRITER, in_state_s=31.0, balancer=None)
        for n in (1, 2)
    ]
    finding = the_one(snapshot_of(readings(ledger(P), ledger(D, *rooms))), "quarantine")
    assert finding.what.startswith("d keeps 4 pages from use for 31 s: p@000000 does not say")
    young = [held(3, "quarantined", peer=P_REF, waits_for=Wait.WRITER, in_state_s=29.0)]
    assert findings(snapshot_of(readings(ledger(P), ledger(D, *young)))) == []


def test_a_room_that_waits_long_for_a_peer() -> None:
    snapshot = running()
    snapshot["engines"][0]["rooms"][0].update(
        waits_for="manifest", in_state_s=40.0, detail="waits for the manifest of d@000000"
    )
    finding = the_one(snapshot, "stuck")
    assert "sending for 40 s, waits for the manifest of d@000000" in finding.what
    assert "pdserve doctor r1" in finding.next


def test_a_long_queue_is_no_fault() -> None:
    snapshot = running()
    snapshot["engines"][0]["rooms"][0].update(
        waits_for="pages", in_state_s=40.0, detail="next; waits for 3 pages, 1 free"
    )
    finding = the_one(snapshot, "long_queue")
    assert finding.note
    assert "3 pages, 1 free" in finding.what


def test_requests_without_a_pair() -> None:
    request = a_request(1)
    request.attempt, request.waiting_since = None, NOW - 3.0
    seen = readings(ledger(P), ledger(D), requests=(request,))
    finding = the_one(snapshot_of(seen, num_waiting=1), "waiting")
    assert finding.what == "requests that wait for a pair: 1, the longest 3.0 s"


def test_pairs_that_cannot_serve_are_told_by_what_differs() -> None:
    refusals = [
        {"prefill": "p@1", "decode": f"d{n}@2", "differences": ["block_size: 16 != 32"]}
        for n in (1, 2)
    ]
    finding = the_one(running(refusals=refusals), "refused_pair")
    assert (
        finding.what == "p@1 and d1@2 and 1 more pairs cannot serve together: block_size: 16 != 32"
    )
    assert finding.note
    (alone,) = findings(running(refusals=refusals, num_pairs=0))
    assert not alone.note


def test_two_lives_of_one_worker() -> None:
    second = member("d", Role.DECODE, incarnation="7" * 16, endpoint="tcp://127.0.0.1:3")
    seen = readings(ledger(P), ledger(D), ledger(second), members=(P, D, second))
    assert the_one(snapshot_of(seen), "lives").what == "2 lives of d are members at once"


def test_two_workers_at_one_address() -> None:
    second = member("d2", Role.DECODE, endpoint=D.info.peer.endpoint)
    seen = readings(ledger(P), ledger(D), ledger(second), members=(P, D, second))
    finding = the_one(snapshot_of(seen), "lives")
    assert finding.what == "2 engines at tcp://127.0.0.1:2 are members at once"


@pytest.mark.parametrize(
    ("departure", "found"),
    [
        ({"reason": "lease_expired", "dead": False}, True),
        ({"reason": "evicted"}, True),
        ({"worker": "d@999999"}, False),  # a successor is there
        ({"reason": "unregistered"}, False),
        ({"ago_s": 601.0}, False),
        ({"worker": "lb2@999999", "role": "balancer"}, True),
        ({"worker": "lb@999999", "role": "balancer"}, False),  # this one is its successor
    ],
)
def test_an_engine_that_left_and_is_not_back(departure: dict[str, Any], found: bool) -> None:
    gone = {
        "worker": "d9@999999",
        "reason": "evicted",
        "dead": True,
        "ago_s": 5.0,
        "role": "decode",
    }
    gone.update(departure)
    said = findings(running(departures=[gone]))
    assert [finding.kind for finding in said] == ["departure"] * found
    if found:
        assert ("quarantine" in said[0].why) is not gone["dead"]
        assert ("clients" in said[0].why) is (gone["role"] == "balancer")


def test_a_leg_whose_engine_answers_and_reports_nothing() -> None:
    snapshot = running()
    snapshot["requests"][0]["legs"][1]["heard_ago_s"] = 12.0
    finding = the_one(snapshot, "silent_leg")
    assert finding.what == "d@000000 holds r1 and has reported nothing of it for 12 s"


def test_a_room_that_is_older_on_one_engine_than_on_the_other() -> None:
    snapshot = running()
    snapshot["engines"][1]["rooms"][0]["age_s"] = 8.0
    finding = the_one(snapshot, "clock")
    assert finding.what == "room 00000001 is 20 s old on p and 8 s on d"


@pytest.mark.parametrize(
    ("counter", "is_note"),
    [("wire_misaddressed", True), ("transfer_num_failed", True), ("wire_handler_errors", False)],
)
def test_counts_that_should_be_zero(counter: str, is_note: bool) -> None:
    snapshot = running()
    snapshot["engines"][1]["counters"] = {counter: 3, "wire_received": 900}
    finding = the_one(snapshot, "counter")
    assert finding.what.endswith(" since the start: d 3")
    assert finding.note is is_note


def test_the_balancers_own_wire_counts_too() -> None:
    finding = the_one(running(wire={"undecodable": 2}), "counter")
    assert finding.what == "undecodable since the start: lb@ffffff 2"


def test_a_worker_that_dies_again_and_again() -> None:
    worker = {"worker_id": "d9", "state": "waiting", "num_restarts": 4, "last_error": "[OOM]"}
    (finding,) = findings(running(), [worker, {**worker, "state": "serving"}])
    assert finding.what == "d9 is waiting after 4 restarts: [OOM]"


def test_what_is_wrong_comes_before_what_is_worth_knowing() -> None:
    snapshot = running(wire={"dropped": 1}, refusals=[], ready=False, reason="none")
    assert [finding.note for finding in findings(snapshot)] == [False, True]


def test_a_peer_that_is_an_earlier_life_shows_in_the_findings() -> None:
    earlier = WorkerRef("d", "9" * 16)
    seen = readings(
        ledger(P, held(1, "sending", peer=earlier)), ledger(D), requests=(a_request(1),)
    )
    kinds = {finding.kind for finding in findings(snapshot_of(seen))}
    assert {"lost_leg", "single_leg"} <= kinds

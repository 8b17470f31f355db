"""What the status page is told, and a request's spans, from made-up requests."""

import json

from bootstrap.identity import Role, WorkerRef
from bootstrap.messages import LegStats
from bootstrap.sampling import SamplingParams
from cluster.balancer.attendance import Departure
from cluster.balancer.live import MAX_ERRORS, MAX_REQUESTS, Look, live_facts
from cluster.balancer.members import Reason
from cluster.balancer.pulse import Pulse
from cluster.balancer.request import RequestSpec
from cluster.balancer.spans import spans_of
from cluster.balancer.stories import Place, Story

REFS = (WorkerRef("p1", "a" * 16), WorkerRef("d1", "b" * 16))


def story(name: str, arrived_at: float, outcome: str = "", *, failed: bool = False) -> Story:
    spec = RequestSpec(
        name, (1, 2, 3), SamplingParams(seed=0, max_tokens=9), answer_id=f"id-{name}"
    )
    return Story(
        spec,
        arrived_at,
        outcome=outcome,
        failed=failed,
        ended_at=arrived_at + 4 if outcome else None,
    )


def place(number: int, started_at: float) -> Place:
    return Place(number, bytes([number]) * 16, REFS, started_at, 0)


def facts(stories: list[Story], reason: Reason | None = None) -> dict:
    departures = [Departure(REFS[1], Role.DECODE, "lease_expired", False, 90.0)]
    look = Look(
        now=100.0,
        model="m",
        balancer="balancer@1",
        reason=reason,
        members=[],
        departures=departures,
        requests=[],
        num_waiting=0,
        stories=stories,
        beat=Pulse().beat(100.0),
    )
    found = live_facts(look)
    json.dumps(found)
    return found


def test_running_requests_come_first_and_there_are_never_too_many():
    stories = [story(f"r{i}", 99.0 - i, "stop") for i in range(2 * MAX_REQUESTS)]
    stories.append(story("old and running", 1.0))
    latest = facts(stories)["latest"]
    assert len(latest) == MAX_REQUESTS
    assert latest[0]["request_id"] == "old and running"
    assert latest[0]["outcome"] is None
    assert latest[0]["took_s"] == 99.0
    assert latest[1]["request_id"] == "r0"


def test_errors_are_failures_and_what_went_on_elsewhere():
    well, failed = story("well", 50.0, "stop"), story("failed", 60.0, "deadline: late", failed=True)
    moved = story("moved", 70.0, "stop")
    moved.places = [place(1, 70.0), place(2, 71.0)]
    moved.places[0].broke = "peer_lost"
    errors = facts([moved, failed, well])["errors"]
    assert [(e["request_id"], e["failed"]) for e in errors] == [("moved", False), ("failed", True)]
    assert "peer_lost" in errors[0]["text"]
    assert errors[1] == {
        "id": "id-failed",
        "request_id": "failed",
        "failed": True,
        "text": "deadline: late",
        "ago_s": 36.0,
    }
    many = [story(str(i), 1.0, "x", failed=True) for i in range(2 * MAX_ERRORS)]
    assert len(facts(many)["errors"]) == MAX_ERRORS


def test_who_left_and_why_nothing_is_served():
    found = facts([], Reason("no ready decode worker"))
    assert found["ready"] is False
    assert found["reason"] == "no ready decode worker"
    assert (found["gone"][0]["worker"], found["gone"][0]["role"]) == ("d1", "decode")
    assert found["gone"][0]["ago_s"] == 10.0


def test_spans_lie_within_their_parents_even_when_clocks_disagree():
    told = story("told", 10.0, "stop")
    told.places = [place(1, 10.5)]
    told.places[0].prefill = LegStats(queue_s=9.0, compute_s=9.0)  # longer than it can have been
    told.places[0].prefilled_at = 11.0
    told.places[0].decode = LegStats(queue_s=9.0, compute_s=9.0, transfer_s=9.0)
    spans = spans_of(told, "m", 99.0)
    assert [span.name for span in spans][:3] == ["request", "wait", "attempt"]
    for span in spans[1:]:
        assert span.parent is not None
        parent = spans[span.parent]
        assert parent.started_at <= span.started_at <= span.ended_at <= parent.ended_at


def test_a_broken_attempt_and_a_failed_request_are_errors():
    told = story("told", 10.0, "deadline: late", failed=True)
    told.places = [place(1, 10.0), place(2, 12.0)]
    told.places[0].ended_at, told.places[0].broke = 12.0, "peer_lost"
    spans = spans_of(told, "m", 99.0)
    assert [(s.name, s.error) for s in spans if s.error] == [
        ("request", "deadline: late"),
        ("attempt", "peer_lost"),
    ]
    assert [s.ended_at for s in spans if s.name == "attempt"] == [12.0, 14.0]

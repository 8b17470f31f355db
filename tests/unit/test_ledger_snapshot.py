"""Where the pools and a balancer contradict each other, and what of it is only news on its way."""

from typing import Any

import pytest

from bootstrap.identity import Role, WorkerRef
from bootstrap.inspection import Orphan
from cluster.balancer.snapshot import GRACE_S, Readings, engines_facts, problems, request_facts
from tests.support.members import member
from tests.support.snapshots import (
    D_REF,
    NOW,
    P_REF,
    D,
    P,
    a_request,
    a_room,
    ended_story,
    held,
    ledger,
    readings,
    silent,
)

OTHER = WorkerRef("lb2", "e" * 16)


def both(number: int = 1, **fields: Any) -> tuple[Any, Any]:
    """Both engines, each with its leg of a room."""
    return (
        ledger(P, held(number, "sending", peer=D_REF, **fields)),
        ledger(D, held(number, "receiving", peer=P_REF, **fields)),
    )


def kinds(seen: Readings) -> list[tuple[str, str]]:
    return [(problem["kind"], problem["worker"].partition("@")[0]) for problem in problems(seen)]


def claims(seen: Readings) -> list[str]:
    return [room["claim"] for engine in engines_facts(seen) for room in engine["rooms"]]


def test_a_room_that_all_know_is_no_problem() -> None:
    seen = readings(*both(), requests=(a_request(1),))
    assert problems(seen) == []
    assert claims(seen) == ["this balancer"] * 2


def test_a_room_of_another_balancer_is_its_own_concern() -> None:
    seen = readings(*both(balancer=OTHER), balancers=(OTHER,))
    assert problems(seen) == []
    assert claims(seen) == [f"balancer {OTHER}"] * 2


def test_rooms_of_a_balancer_that_is_gone_are_unclaimed() -> None:
    seen = readings(*both(balancer=OTHER))
    assert kinds(seen) == [("unclaimed", "p"), ("unclaimed", "d")]
    assert problems(seen)[0]["text"] == f"sending for nobody (dispatched by {OTHER})"


def test_rooms_that_this_balancer_does_not_know_are_unclaimed() -> None:
    seen = readings(*both())
    assert kinds(seen) == [("unclaimed", "p"), ("unclaimed", "d")]
    assert claims(seen) == ["nobody"] * 2
    assert problems(seen)[0]["room"] == "00000001"
    assert problems(readings(*both(age_s=GRACE_S))) == []


def test_a_room_lingers_only_a_while_after_its_request_ended() -> None:
    for ended_at, expected in ((NOW - 1.0, []), (NOW - 10.0, [("unclaimed", "d")])):
        engines = ledger(P), ledger(D, held(1, "running", peer=P_REF))
        stories = {a_room(1): ended_story(1, ended_at)}
        seen = readings(*engines, ended_rooms=stories)
        assert kinds(seen) == expected
        assert claims(seen) == ["this balancer, which ended it"]


@pytest.mark.parametrize("state", ["quarantined", "closing"])
def test_a_room_that_ended_may_wait_for_its_peer(state: str) -> None:
    seen = readings(ledger(P, held(1, state)), ledger(D))
    assert problems(seen) == []


def test_a_leg_that_its_engine_lost_is_named() -> None:
    engines = ledger(P), ledger(D, held(1, "receiving", peer=P_REF))
    seen = readings(*engines, requests=(a_request(1),))
    assert kinds(seen) == [("lost_leg", "p"), ("single_leg", "d")]
    young = readings(*engines, requests=(a_request(1, started_at=NOW - GRACE_S),))
    assert kinds(young) == [("single_leg", "d")]


def test_an_engine_that_did_not_tell_all_its_rooms_has_lost_none() -> None:
    decode = ledger(D, held(1, "receiving", peer=P_REF))
    requests = (a_request(1),)
    assert problems(readings(silent(P), decode, requests=requests)) == []
    partial = ledger(P, complete=False)
    assert problems(readings(partial, decode, requests=requests)) == []


def test_a_decode_leg_needs_prefill_no_more_once_it_runs() -> None:
    decode = ledger(D, held(1, "running", peer=P_REF, balancer=OTHER))
    assert problems(readings(ledger(P), decode, balancers=(OTHER,))) == []


def test_a_leg_whose_peer_is_an_earlier_life_is_named() -> None:
    earlier = WorkerRef("d", "9" * 16)
    prefill = ledger(P, held(1, "sending", peer=earlier, balancer=OTHER))
    (problem,) = problems(readings(prefill, ledger(D), balancers=(OTHER,)))
    assert problem["kind"] == "single_leg"
    assert problem["text"] == f"sending, and its peer {earlier} is no member"


def test_pages_of_no_room_are_named() -> None:
    orphan = Orphan(a_room(7), {"in_use": 2, "leased": 1})
    seen = readings(ledger(P, orphans=(orphan,)), ledger(D))
    (problem,) = problems(seen)
    assert (problem["kind"], problem["room"]) == ("orphan", "00000007")
    assert problem["text"] == "2 in_use, 1 leased pages of no room"
    assert engines_facts(seen)[0]["num_orphan_pages"] == 3


def test_an_engine_that_says_nothing_is_listed_all_the_same() -> None:
    prefill, decode = engines_facts(readings(silent(P), ledger(D)))
    assert (prefill["worker"], prefill["answered"]) == ("p", False)
    assert prefill["problem"] == "no answer within 2 s"
    assert (decode["answered"], decode["problem"], decode["num_pages"]) == (True, None, 64)


def test_a_request_tells_its_legs_and_its_deadline() -> None:
    facts = request_facts(a_request(3), NOW)
    assert (facts["state"], facts["room"], facts["attempt"]) == ("prefilling", "00000003", 1)
    assert facts["deadline_left_s"] == 60.0
    assert [leg["role"] for leg in facts["legs"]] == ["prefill", "decode"]
    assert facts["legs"][0] == {
        "role": "prefill",
        "worker": str(P_REF),
        "heard_ago_s": 20.0,
        "over": False,
    }


def test_members_without_an_answer_stay_in_order() -> None:
    third = member("d2", Role.DECODE)
    facts = engines_facts(readings(ledger(P), silent(D), ledger(third), members=(P, D, third)))
    assert [(e["worker"], e["answered"]) for e in facts] == [
        ("p", True),
        ("d", False),
        ("d2", True),
    ]

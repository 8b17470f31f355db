"""What is remembered of each request, how it is found again, and why it is where it is."""

from typing import Any

from bootstrap.identity import Peer, Role
from bootstrap.messages import FailureReason, LegStats
from bootstrap.sampling import FinishReason, GrammarKind, GrammarSpec, SamplingParams
from cluster.balancer.core import News
from cluster.balancer.instructions import (
    Deliver,
    Dispatch,
    EndAttempt,
    Fail,
    Failure,
    FailureKind,
    Measured,
    Retry,
)
from cluster.balancer.request import Request, RequestSpec, RetryRules
from cluster.balancer.snapshot import request_facts
from cluster.balancer.spans import spans_of
from cluster.balancer.stories import MAX_ENDED, MAX_STEPS, Stories, Story
from cluster.balancer.verdict import verdict
from tests.support.snapshots import D_REF, P_REF, a_request, a_room


def spec(name: str, answer_id: str = "cmpl-1") -> RequestSpec:
    return RequestSpec(name, (1, 2, 3), SamplingParams(seed=0, max_tokens=4), answer_id=answer_id)


def tell(stories: Stories, what: Any, now: float, request: Request | None = None) -> None:
    stories.told(News(7, request or a_request(1), what), now)


def begun(name: str = "r1", *, dispatched: bool = False) -> Stories:
    stories = Stories(lambda story: None)
    stories.began(7, spec(name), 10.0)
    if dispatched:
        attempt = a_request(1).attempt
        assert attempt is not None
        tell(stories, Dispatch(attempt), 10.0)
    return stories


def steps(story: Story) -> list[tuple[float, str]]:
    return [(step.at_s, step.what) for step in story.steps]


def test_a_story_tells_attempts_tokens_and_the_outcome() -> None:
    stories = begun(dispatched=True)
    request = a_request(1)
    assert request.attempt is not None
    tell(stories, Measured(Role.PREFILL, LegStats(queue_s=0.5, compute_s=0.25)), 11.0)
    for token, now in ((5, 11.0), (6, 12.0)):
        tell(stories, Deliver((token,), None), now)
    tell(stories, Deliver((7,), FinishReason.STOP), 13.0)
    tell(stories, EndAttempt(request.attempt, (), FailureReason.FINISHED), 13.0)
    (story,) = stories.find("r1")
    assert steps(story) == [
        (0.0, "attempt 1 dispatched to p@000000 and d@000000, room 00000001"),
        (1.0, "prefill leg measured: queued 0.500 s, computed 0.250 s"),
        (1.0, "first token"),
        (3.0, "last token: stop"),
    ]
    facts = story.facts(20.0)
    assert (facts["outcome"], facts["ended_after_s"], facts["delivered_tokens"]) == ("stop", 3.0, 3)
    assert facts["attempts"][0]["workers"] == [str(P_REF), str(D_REF)]
    assert stories.ended_rooms() == {a_room(1): story}


def test_a_broken_attempt_and_a_failure_say_why() -> None:
    stories = begun(dispatched=True)
    request = a_request(1)
    assert request.attempt is not None
    peer = Peer(P_REF, "tcp://127.0.0.1:1")
    tell(stories, EndAttempt(request.attempt, (peer,), FailureReason.PEER_LOST), 11.0)
    tell(stories, Retry(FailureReason.PEER_LOST, "d is gone"), 11.0)
    tell(stories, Fail(Failure(FailureKind.UNAVAILABLE, "no pair", "d is gone")), 13.0)
    (story,) = stories.find("cmpl-1")
    assert [what for _, what in steps(story)][1:] == [
        "p@000000 told to end the room: peer_lost",
        "the attempt broke after 0 tokens: d is gone",
        "failed: unavailable: no pair (d is gone)",
    ]
    assert story.outcome == "unavailable: no pair"


def test_the_first_outcome_counts_and_strangers_are_ignored() -> None:
    stories = begun()
    stories.ended(7, "stop", 11.0)
    stories.ended(7, "cancelled", 12.0)
    tell(stories, Fail(Failure(FailureKind.CANCELLED, "gone")), 12.0)
    (story,) = stories.find("r1")
    assert (story.outcome, story.ended_at) == ("stop", 11.0)


def test_a_call_is_found_by_either_id_and_with_all_its_choices() -> None:
    stories = Stories(lambda story: None)
    for key, name in enumerate(("job/7/0", "job/7/1", "job/8/0")):
        stories.began(key, spec(name, answer_id=f"cmpl-{key}"), float(key))
    assert [story.spec.request_id for story in stories.find("job/7")] == ["job/7/1", "job/7/0"]
    assert [story.spec.request_id for story in stories.find("job/8/0")] == ["job/8/0"]
    assert [story.spec.request_id for story in stories.find("cmpl-1")] == ["job/7/1"]
    assert stories.find("job") == []


def test_memory_is_bounded() -> None:
    stories = Stories(lambda story: None)
    for key in range(MAX_ENDED + 5):
        stories.began(key, spec(f"r{key}"), float(key))
        stories.ended(key, "stop", float(key))
    assert stories.find("r4") == []
    assert len(stories.find("r5")) == 1
    stories = begun(dispatched=True)
    for _ in range(MAX_STEPS + 5):
        tell(stories, Retry(FailureReason.PEER_LOST, "again"), 11.0)
    (story,) = stories.find("r1")
    assert len(story.steps) == MAX_STEPS


def test_an_ended_story_keeps_no_content_and_tells_the_same() -> None:
    asked = RequestSpec(
        "r1",
        tuple(range(1000)),
        SamplingParams(seed=0, max_tokens=4, grammar=GrammarSpec(GrammarKind.REGEX, "a" * 1000)),
        bootstrap_stop_ids=(5, 6),
        answer_id="cmpl-1",
    )
    stories = Stories(lambda story: None)
    stories.began(7, asked, 10.0)
    (live,) = stories.find("r1")
    assert live.spec is asked
    before = live.facts(12.0)
    stories.ended(7, "stop", 12.0)
    (story,) = stories.find("cmpl-1")
    assert story.facts(12.0) == {**before, "outcome": "stop", "ended_after_s": 2.0}
    assert story.facts(12.0)["prompt_tokens"] == 1000
    spans = spans_of(story, "m", 12.0)
    assert spans[0].attributes["gen_ai.usage.input_tokens"] == 1000
    assert story.spec.prompt_token_ids == story.spec.bootstrap_stop_ids == ()
    assert story.spec.sampling.grammar is None


# --- verdicts --------------------------------------------------------------------------------


def leg(role: str, worker: str, detail: str | None = "", **fields: Any) -> dict[str, Any]:
    room = None if detail is None else {"state": "queued", "in_state_s": 2.0, "detail": detail}
    return {
        "role": role,
        "worker": worker,
        "answered": True,
        "problem": None,
        "room": room,
        **fields,
    }


def test_a_request_that_ended_says_how() -> None:
    stories = begun()
    stories.ended(7, "deadline: the request's deadline passed", 14.0)
    facts = stories.find("r1")[0].facts(20.0)
    said = "ended 6.0 s ago, after 4.0 s and 0 tokens: deadline: the request's deadline passed"
    assert verdict(facts, None, []) == said
    held = [leg("decode", "d", "quarantined: settling, 1.2 s left"), leg("prefill", "p", None)]
    assert verdict(facts, None, held) == (
        f"{said}; its pages are still held: d: quarantined: settling, 1.2 s left"
    )


def test_a_request_that_runs_says_what_its_legs_wait_for() -> None:
    facts = begun().find("r1")[0].facts(20.0)
    live = request_facts(a_request(1), 100.0)
    legs = [leg("prefill", "p", "queued behind 3 prompts, 812 tokens"), leg("decode", "d", None)]
    assert verdict(facts, live, legs) == (
        "p: queued for 2.0 s, queued behind 3 prompts, 812 tokens; d does not hold it"
    )
    silent = [leg("prefill", "p", None, answered=False, problem="no answer within 2 s")]
    assert verdict(facts, live, silent) == "p does not answer: no answer within 2 s"
    decoding = {**live, "state": "decoding"}
    assert verdict(facts, decoding, [leg("prefill", "p", None), leg("decode", "d", "decodes")]) == (
        "d: queued for 2.0 s, decodes"
    )


def test_a_request_without_a_pair_says_what_broke_last() -> None:
    stories = begun(dispatched=True)
    tell(stories, Retry(FailureReason.PEER_LOST, "d is gone"), 11.0)
    facts = stories.find("r1")[0].facts(20.0)
    waiting = Request(spec("r1"), RetryRules(), 60.0, 17.0)
    assert verdict(facts, request_facts(waiting, 20.0), []) == (
        "waits in the balancer for a pair that can take it, 3.0 s so far;"
        " the attempt broke after 0 tokens: d is gone"
    )

"""What happened to each request, step by step: of those that run, and of the last ones that ended.

Pure. It follows the core's news; it decides nothing.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bootstrap.identity import Role, WorkerRef, short_room
from bootstrap.messages import LegStats
from bootstrap.sampling import SamplingParams
from cluster.balancer.core import News
from cluster.balancer.instructions import Deliver, Dispatch, EndAttempt, Fail, Measured, Retry
from cluster.balancer.request import Request, RequestSpec

MAX_ENDED = 1000
MAX_STEPS = 64  # of one request; attempts are few, so this is a bound and no limit


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened, `at_s` after the request came."""

    at_s: float
    what: str


@dataclass(slots=True)
class Place:
    """An attempt: its room, the workers of its legs, prefill first, and what is known of them.

    Times are the balancer's; `prefilled_at` is when the bootstrap token came, `ended_at` is None while
    the attempt is the present one, `broke` says why it was not the last.
    """

    number: int
    room: bytes
    refs: tuple[WorkerRef, ...]
    started_at: float
    output_offset: int
    ended_at: float | None = None
    broke: str = ""
    prefill: LegStats | None = None
    prefilled_at: float = 0.0
    decode: LegStats | None = None

    def measured(self, what: Measured, now: float) -> None:
        """A leg told what it measured."""
        if what.role is Role.PREFILL:
            self.prefill, self.prefilled_at = what.stats, now
        else:
            self.decode = what.stats


@dataclass(slots=True)
class Story:
    """One request. `outcome` is empty until it is decided; from then on its content is let go."""

    spec: RequestSpec
    arrived_at: float
    steps: list[Step] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    num_delivered: int = 0
    outcome: str = ""
    failed: bool = False
    ended_at: float | None = None
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.spec.prompt_token_ids)

    def end(self, outcome: str, now: float, *, failed: bool) -> None:
        """It is over: what is told of it stays, its prompt and its grammar would take memory."""
        self.outcome, self.failed, self.ended_at = outcome, failed, now
        asked = self.spec.sampling
        kept = SamplingParams(
            seed=asked.seed, max_tokens=asked.max_tokens, temperature=asked.temperature
        )
        self.spec = replace(self.spec, prompt_token_ids=(), bootstrap_stop_ids=(), sampling=kept)

    def named(self, name: str) -> bool:
        """Whether `name` is the answer's id, or the client's own id, with or without a choice."""
        request_id = self.spec.request_id
        whole = request_id.rpartition("/")[0] if "/" in request_id else request_id
        return name in (self.spec.answer_id, request_id, whole)

    def facts(self, now: float) -> dict[str, Any]:
        """For people and programs; times in seconds from the request's arrival."""
        return {
            "id": self.spec.answer_id,
            "request_id": self.spec.request_id,
            "age_s": round(now - self.arrived_at, 3),
            "outcome": self.outcome or None,
            "ended_after_s": None
            if self.ended_at is None
            else round(self.ended_at - self.arrived_at, 3),
            "prompt_tokens": self.num_prompt_tokens,
            "delivered_tokens": self.num_delivered,
            "max_tokens": self.spec.sampling.max_tokens,
            "attempts": [
                {
                    "number": place.number,
                    "room": short_room(place.room),
                    "workers": [str(ref) for ref in place.refs],
                }
                for place in self.places
            ],
            "steps": [{"at_s": round(step.at_s, 4), "what": step.what} for step in self.steps],
        }


class Stories:
    """Each request is here from `began` on; of those that ended the last MAX_ENDED."""

    def __init__(self, on_ended: Callable[[Story], None]) -> None:
        self._on_ended = on_ended
        self._live: dict[int, Story] = {}
        self._ended: OrderedDict[int, Story] = OrderedDict()  # the latest last

    def began(self, key: int, spec: RequestSpec, now: float) -> None:
        """A request was taken."""
        self._live[key] = Story(spec, now)

    def told(self, news: News, now: float) -> None:
        """Something happened to a request; of one that is not here it changes nothing."""
        story = self._live.get(news.key)
        if story is None:
            return
        what, request = news.what, news.request
        if isinstance(what, Dispatch):
            attempt = what.attempt
            place = Place(attempt.number, attempt.room, attempt.refs, now, attempt.output_offset)
            story.places.append(place)
        elif isinstance(what, Measured) and story.places:
            story.places[-1].measured(what, now)
        elif isinstance(what, Retry):
            story.places[-1].ended_at, story.places[-1].broke = now, what.reason.value
        for text in _words(what, request, is_first=not story.num_delivered):
            if len(story.steps) < MAX_STEPS:
                story.steps.append(Step(now - story.arrived_at, text))
        if isinstance(what, Deliver):
            story.num_delivered += len(what.token_ids)
        if isinstance(what, Fail):
            outcome = f"{what.failure.kind.value}: {what.failure.detail}"
            self.ended(news.key, outcome, now, failed=True)
        elif isinstance(what, Deliver) and what.finish is not None:
            self.ended(news.key, what.finish.value, now)

    def ended(self, key: int, outcome: str, now: float, *, failed: bool = False) -> None:
        """The outcome is decided; the first one counts."""
        story = self._live.pop(key, None)
        if story is None:
            return
        story.end(outcome, now, failed=failed)
        self._ended[key] = story
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        self._on_ended(story)

    def find(self, name: str) -> list[Story]:
        """All stories of a client's or an answer's id, the latest first."""
        return [story for story in self.latest() if story.named(name)]

    def latest(self) -> list[Story]:
        """All that are here, the latest to come first."""
        everyone = [*self._ended.values(), *self._live.values()]
        return sorted(everyone, key=lambda story: story.arrived_at, reverse=True)

    def ended_rooms(self) -> dict[bytes, Story]:
        """The rooms of requests that ended lately."""
        return {p.room: story for story in self._ended.values() for p in story.places}


def _words(
    what: Dispatch | Deliver | Measured | Fail | Retry | EndAttempt,
    request: Request,
    *,
    is_first: bool,
) -> list[str]:
    """What a step is in words; most tokens are none."""
    if isinstance(what, Dispatch):
        attempt = what.attempt
        workers = " and ".join(str(ref) for ref in attempt.refs)
        return [
            f"attempt {attempt.number} dispatched to {workers}, room {short_room(attempt.room)}"
        ]
    if isinstance(what, Retry):
        return [f"the attempt broke after {len(request.delivered)} tokens: {what.detail}"]
    if isinstance(what, Measured):
        return [f"{what.role.value} leg measured: {_measured(what)}"]
    if isinstance(what, Fail):
        return [f"failed: {what.failure.kind.value}: {what.failure.detail}{_inside(what)}"]
    if isinstance(what, Deliver):
        first = ["first token"] if is_first and what.token_ids else []
        last = [] if what.finish is None else [f"last token: {what.finish.value}"]
        return first + last
    aborts = ", ".join(str(peer.ref) for peer in what.aborts)
    return [f"{aborts} told to end the room: {what.reason.value}"] if aborts else []


def _measured(what: Measured) -> str:
    stats = what.stats
    text = f"queued {stats.queue_s:.3f} s, computed {stats.compute_s:.3f} s"
    if stats.transfer_bytes:
        text += f", {stats.transfer_bytes} bytes moved in {stats.transfer_s:.3f} s"
    return text


def _inside(what: Fail) -> str:
    return f" ({what.failure.inside})" if what.failure.inside else ""

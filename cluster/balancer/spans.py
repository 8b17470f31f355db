"""One request's way through the cluster as the spans of one trace. Pure: it knows no OpenTelemetry.

    request                       the client's arrival to the outcome
      wait                        until a pair of engines is found
      attempt                     one per pair that was tried
        prefill queue, prefill    as the prefill engine measured them
        decode admission          until the decode engine reserved pages
        transfer                  while pages moved, beside the prefill's later chunks
        decode                    from the handoff's commit to the last token

Engines measure durations and the balancer knows when each leg began and ended: hosts share no clock, so
their spans are laid between the balancer's own readings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bootstrap.identity import short_room
from cluster.balancer.stories import Place, Story

Attribute = str | int | float | list[str]


@dataclass(frozen=True, slots=True)
class Span:
    """`parent` is the index of an earlier span of the same list, None for the first."""

    name: str
    parent: int | None
    started_at: float
    ended_at: float
    attributes: dict[str, Attribute] = field(default_factory=dict)
    error: str = ""


def spans_of(story: Story, model: str, now: float) -> list[Span]:
    """The request first; what has not ended ends `now`."""
    ended_at = now if story.ended_at is None else story.ended_at
    spec, places = story.spec, story.places
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": spec.sampling.max_tokens,
        "gen_ai.request.temperature": spec.sampling.temperature,
        "gen_ai.response.id": spec.answer_id,
        "gen_ai.response.finish_reasons": [story.outcome],
        "gen_ai.usage.input_tokens": story.num_prompt_tokens,
        "gen_ai.usage.output_tokens": story.num_delivered,
        "pdserve.request_id": spec.request_id,
    }
    error = story.outcome if story.failed else ""
    placed_at = places[0].started_at if places else ended_at
    spans = [
        Span("request", None, story.arrived_at, ended_at, attributes, error),
        Span("wait", 0, story.arrived_at, placed_at),
    ]
    for place in places:
        until = ended_at if place.ended_at is None else place.ended_at
        spans.append(_attempt(place, until))
        spans += _legs(place, len(spans) - 1, until)
    return spans


def _attempt(place: Place, ended_at: float) -> Span:
    attributes: dict[str, Attribute] = {
        "pdserve.attempt": place.number,
        "pdserve.room": short_room(place.room),
        "pdserve.workers": [str(ref) for ref in place.refs],
        "pdserve.output_offset": place.output_offset,
    }
    return Span("attempt", 0, place.started_at, ended_at, attributes, place.broke)


def _legs(place: Place, parent: int, ended_at: float) -> Iterator[Span]:
    began_at = place.started_at
    if place.prefill is not None:
        computing_at = max(began_at, place.prefilled_at - place.prefill.compute_s)
        cached: dict[str, Attribute] = {"pdserve.cached_tokens": place.prefill.num_cached_tokens}
        yield Span("prefill queue", parent, began_at, computing_at)
        yield Span("prefill", parent, computing_at, place.prefilled_at, cached)
    if place.decode is not None:
        committed_at = max(began_at, ended_at - place.decode.compute_s)
        admitted_at = min(committed_at, began_at + place.decode.queue_s)
        moving_at = max(began_at, committed_at - place.decode.transfer_s)
        moved: dict[str, Attribute] = {
            "pdserve.bytes": place.decode.transfer_bytes,
            "pdserve.cached_tokens": place.decode.num_cached_tokens,
        }
        yield Span("decode admission", parent, began_at, admitted_at)
        yield Span("transfer", parent, moving_at, committed_at, moved)
        yield Span("decode", parent, committed_at, ended_at)

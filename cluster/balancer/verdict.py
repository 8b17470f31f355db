"""Why one request is where it is, in a sentence. Pure: it reads what `/debug/requests` tells of it."""

from collections.abc import Mapping, Sequence
from typing import Any


def verdict(
    story: Mapping[str, Any], live: Mapping[str, Any] | None, legs: Sequence[Mapping[str, Any]]
) -> str:
    """`live` is the request as its machine has it, None once it ended; `legs` its engines' views."""
    if live is None:
        held = [f"{leg['worker']}: {leg['room']['detail']}" for leg in legs if leg["room"]]
        rest = f"; its pages are still held: {'; '.join(held)}" if held else ""
        return (
            f"ended {story['age_s'] - story['ended_after_s']:.1f} s ago, after"
            f" {story['ended_after_s']:.1f} s and {story['delivered_tokens']} tokens:"
            f" {story['outcome']}{rest}"
        )
    if live["room"] is None:
        broke = [step["what"] for step in story["steps"] if step["what"].startswith("the attempt")]
        why = f"; {broke[-1]}" if broke else ""
        return f"waits in the balancer for a pair that can take it, {live['waiting_s']:.1f} s so far{why}"
    return "; ".join(_leg(leg) for leg in legs if _concerns(live["state"], leg))


def _concerns(state: str, leg: Mapping[str, Any]) -> bool:
    """Whether the request waits for that leg: prefill is done once it gave its token and its pages."""
    if leg["role"] == "decode" or state == "prefilling":
        return True
    return state == "handing off" and (leg["room"] is not None or not leg["answered"])


def _leg(leg: Mapping[str, Any]) -> str:
    if not leg["answered"]:
        return f"{leg['worker']} does not answer: {leg['problem']}"
    room = leg["room"]
    if room is None:
        return f"{leg['worker']} does not hold it"
    return f"{leg['worker']}: {room['state']} for {room['in_state_s']:.1f} s, {room['detail']}"

"""What the log says of each request: who, which attempt, which room, where, and why."""

import logging

from bootstrap.identity import short_room
from cluster.balancer.attempt import Attempt
from cluster.balancer.core import News
from cluster.balancer.instructions import Dispatch, EndAttempt, Fail, FailureKind, Retry

log = logging.getLogger(__name__)


def note(news: News, *, is_probe: bool) -> None:
    """One line per event; tokens make none, and how it went is told at the end by `Timelines`.

    Probes repeat, so theirs are for debugging; readiness tells what comes of them.
    """
    name, what = news.request.spec.request_id, news.what
    facts = _facts(news)
    if isinstance(what, Dispatch):
        answer_id = news.request.spec.answer_id
        place = _place(what.attempt)
        log.debug("request %s (%s) %s: dispatched", name, answer_id, place, extra=facts)
    elif isinstance(what, EndAttempt):
        aborts = ", ".join(str(peer.ref) for peer in what.aborts) or "nobody"
        told = what.reason.value
        place = _place(what.attempt)
        log.debug("request %s %s: over, %s told %s", name, place, aborts, told, extra=facts)
    elif isinstance(what, Retry):
        num = news.request.num_attempts
        done = len(news.request.delivered)
        text = "request %s attempt %d broke after %d tokens: %s"
        log.warning(text, name, num, done, what.detail, extra=facts)
    elif isinstance(what, Fail):
        kind = what.failure.kind
        level = logging.INFO if kind is FailureKind.CANCELLED else logging.WARNING
        level = logging.DEBUG if is_probe else level
        why = what.failure.detail
        if what.failure.inside:
            why = f"{why}; the last attempt broke: {what.failure.inside}"
        log.log(level, "request %s %s: %s", name, kind.value, why, extra=facts)


def _facts(news: News) -> dict[str, object]:
    """What a structured log tells beside the line."""
    what, request = news.what, news.request
    attempt = what.attempt if isinstance(what, Dispatch | EndAttempt) else request.attempt
    facts: dict[str, object] = {
        "request_id": request.spec.request_id,
        "attempt": request.num_attempts,
    }
    return facts if attempt is None else {**facts, "room": short_room(attempt.room)}


def _place(attempt: Attempt) -> str:
    workers = " and ".join(str(ref) for ref in attempt.refs)
    return f"attempt {attempt.number} room {short_room(attempt.room)} at {workers}"

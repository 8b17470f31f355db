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
    if isinstance(what, Dispatch):
        answer_id = news.request.spec.answer_id
        log.debug("request %s (%s) %s: dispatched", name, answer_id, _place(what.attempt))
    elif isinstance(what, EndAttempt):
        aborts = ", ".join(str(peer.ref) for peer in what.aborts) or "nobody"
        told = what.reason.value
        log.debug("request %s %s: over, %s told %s", name, _place(what.attempt), aborts, told)
    elif isinstance(what, Retry):
        num = news.request.num_attempts
        done = len(news.request.delivered)
        log.warning("request %s attempt %d broke after %d tokens: %s", name, num, done, what.detail)
    elif isinstance(what, Fail):
        kind = what.failure.kind
        level = logging.INFO if kind is FailureKind.CANCELLED else logging.WARNING
        level = logging.DEBUG if is_probe else level
        why = what.failure.detail
        if what.failure.inside:
            why = f"{why}; the last attempt broke: {what.failure.inside}"
        log.log(level, "request %s %s: %s", name, kind.value, why)


def _place(attempt: Attempt) -> str:
    workers = " and ".join(str(ref) for ref in attempt.refs)
    return f"attempt {attempt.number} room {short_room(attempt.room)} at {workers}"

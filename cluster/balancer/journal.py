"""What the log says of each request: who, which attempt, which room, where, and why."""

import logging

from bootstrap.identity import short_room
from cluster.balancer.attempt import Attempt
from cluster.balancer.core import News
from cluster.balancer.instructions import Deliver, Dispatch, EndAttempt, Fail, FailureKind, Retry

log = logging.getLogger(__name__)


def note(news: News, *, is_probe: bool) -> None:
    """One line per event; tokens on their way make none.

    Probes repeat, so theirs are for debugging; readiness tells what comes of them.
    """
    name, what = news.request.spec.request_id, news.what
    if isinstance(what, Dispatch):
        log.debug("request %s %s: dispatched", name, _place(what.attempt))
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
        log.log(level, "request %s %s: %s", name, kind.value, what.failure.detail)
    elif isinstance(what, Deliver) and what.finish is not None:
        num = len(news.request.delivered)
        log.debug("request %s finished (%s) with %d tokens", name, what.finish.value, num)


def _place(attempt: Attempt) -> str:
    workers = " and ".join(str(ref) for ref in attempt.refs)
    return f"attempt {attempt.number} room {short_room(attempt.room)} at {workers}"

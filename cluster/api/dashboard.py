"""The status page at `/dashboard`, and what it shows, live, at `/debug/live`.

The page is static and holds no facts; those come as server-sent events to whoever `access` lets ask.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, StreamingResponse

from cluster.api.errors import ApiError
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.live import Look, live_facts

INTERVAL_S = 1.0
MAX_WATCHERS = 64

_PAGE = Path(__file__).parent / "page"
_FILES = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "charts.js": "text/javascript",
    "timeline.js": "text/javascript",
    "playground.js": "text/javascript",
}
# Nothing from elsewhere, nothing inline: what a model or a client says cannot become a script.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@router.get("/dashboard")
async def page() -> Response:
    """The page."""
    return FileResponse(_PAGE / "index.html", media_type="text/html", headers=_HEADERS)


@router.get("/dashboard/{name}")
async def part(name: str) -> Response:
    """A style sheet or a script of it."""
    if name not in _FILES:
        raise ApiError(404, f"/dashboard/{name}: Not Found")
    return FileResponse(_PAGE / name, media_type=_FILES[name], headers=_HEADERS)


@router.get("/debug/live")
async def live(request: Request) -> Response:
    """One event a second, each the whole of what the page shows, until the reader goes."""
    watchers: set[int] = request.app.state.watchers
    if len(watchers) >= MAX_WATCHERS:
        raise ApiError(
            503, f"{MAX_WATCHERS} others are watching already.", code="too_many_watchers"
        )
    return StreamingResponse(
        _events(request.app.state.dispatcher, watchers), media_type="text/event-stream"
    )


async def _events(dispatcher: Dispatcher, watchers: set[int]) -> AsyncIterator[bytes]:
    me = id(asyncio.current_task())
    watchers.add(me)
    try:
        while not dispatcher.stopping:
            yield b"data: %s\n\n" % json.dumps(_facts(dispatcher)).encode()
            await asyncio.sleep(INTERVAL_S)
    finally:
        watchers.discard(me)


def _facts(dispatcher: Dispatcher) -> dict[str, object]:
    core, now = dispatcher.core, time.monotonic()
    look = Look(
        now=now,
        model=dispatcher.settings.model_name,
        balancer=str(core.me.ref),
        reason=dispatcher.unready_reason(),
        members=list(core.members),
        departures=list(dispatcher.attendance.departures.values()),
        requests=core.requests(),
        num_waiting=core.num_waiting,
        stories=dispatcher.stories.latest(),
        beat=dispatcher.pulse.beat(now),
    )
    return live_facts(look)

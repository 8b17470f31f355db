"""How an answer leaves: all at once or as server-sent events, and what happens when nobody listens.

Knows connections and errors, not what the answers look like.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from bootstrap.errors import RemoteFault
from cluster.api.broken_streams import EventStream, LastWords
from cluster.api.errors import ApiError, api_error
from cluster.api.resumption import Reader, ResumableStreams

DONE = b"data: [DONE]\n\n"
# What ends a line for Unicode, and so for httpx and str.splitlines, and needs no escape in JSON.
_LINE_ENDS = {ord(end): json.dumps(end)[1:-1] for end in "\x85\u2028\u2029"}

_T = TypeVar("_T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Events:
    """A stream that has begun: its first event exists, so a status of 200 is the truth.

    `name` is its answer's id. `cancel` ends the work behind it; a repeat is a no-op. `last` follows
    when nothing failed.
    """

    name: str
    first: bytes
    rest: AsyncIterator[bytes]
    cancel: Callable[[], None]
    last: tuple[bytes, ...] = (DONE,)

    @classmethod
    async def begin(
        cls,
        name: str,
        events: AsyncIterator[bytes],
        cancel: Callable[[], None],
        last: tuple[bytes, ...] = (DONE,),
    ) -> "Events":
        """Wait for the first event; raises what `events` raises before it."""
        return cls(name, await events.__anext__(), events, cancel, last)

    async def to_end(self) -> AsyncIterator[bytes]:
        """All events and `last`; or what fails from here on is the last event."""
        try:
            yield self.first
            async for more in self.rest:
                yield more
            for more in self.last:
                yield more
        except RemoteFault as error:
            yield LastWords(api_error(error).event)
        except Exception:
            log.exception("a stream broke off")
            yield LastWords(ApiError(500, "internal error", code="internal_error").event)


def event(chunk: BaseModel, *, without: frozenset[str] = frozenset()) -> bytes:
    """One server-sent event; fields that were never set and those in `without` are left out."""
    return b"data: " + one_line(chunk.model_dump_json(exclude=set(without))).encode() + b"\n\n"


def one_line(text: str) -> str:
    """JSON that no reader takes for several lines: many split at more than the format's newlines."""
    return text.translate(_LINE_ENDS)


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do `work`; when the client closes its connection cancel it and raise ApiError."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client closed its connection")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def streaming(request: Request, events: Events, *, resumable: bool) -> EventStream:
    """Send `events`; their work ends when the client goes, unless it may come back."""
    if not resumable:
        return EventStream(_while_listening(request, events.to_end(), events.cancel))
    streams: ResumableStreams = request.app.state.streams
    return _read(request, streams.open(events.name, events.to_end(), events.cancel))


def resumed(request: Request) -> EventStream | None:
    """The rest of the stream that the client read before, if it says so; raises ApiError."""
    last_event_id = request.headers.get("last-event-id")
    if last_event_id is None:
        return None
    streams: ResumableStreams = request.app.state.streams
    return _read(request, streams.find(last_event_id))


def _read(request: Request, reader: Reader) -> EventStream:
    return EventStream(_while_listening(request, reader.events(), reader.leave))


async def _while_listening(
    request: Request, events: AsyncIterator[bytes], leave: Callable[[], None]
) -> AsyncIterator[bytes]:
    """`events`; `leave` is called when they end, and as soon as the client is gone."""

    async def watch() -> None:
        await _until_gone(request)
        leave()  # at once, though no event may come for long

    watcher = asyncio.ensure_future(watch())
    try:
        async for event in events:
            yield event
    finally:
        leave()
        watcher.cancel()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

"""How the connection of a stream ends that told an error: it is closed, so nobody waits for more.

ASGI has no word for it. What does close a connection in uvicorn is an application that raises once its
response is complete; here that is meant, so the log is not told of a fault.
"""

import logging
from collections.abc import AsyncIterator

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from bootstrap.errors import PdserveError


class LastWords(bytes):
    """An event that tells why a stream broke off; it is the last one."""


class StreamBroken(PdserveError):
    """Everything is sent and the connection is to be closed. No handler stands in its way."""


class EventStream(StreamingResponse):
    """Server-sent events; the connection is closed after `LastWords`."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        self._broken = False
        super().__init__(
            self._watched(events),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; raises StreamBroken after it."""
        await super().__call__(scope, receive, send)
        if self._broken:
            raise StreamBroken

    async def _watched(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for event in events:
            self._broken = isinstance(event, LastWords)
            yield event


def no_fault(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: whether `record` is of anything but StreamBroken."""
    return record.exc_info is None or not isinstance(record.exc_info[1], StreamBroken)

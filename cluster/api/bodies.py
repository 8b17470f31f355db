"""Bodies as a whole: how large they may be, and that they are JSON, before anything parses them.

Knows nothing of what they say.
"""

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.errors import ApiError

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_MAX_LENGTH_DIGITS = 18


class Bodies:
    """ASGI middleware: a handler gets at most `max_bytes` of JSON, in one piece.

    A body is read to its end before any handler runs, so one that hides its length costs no more
    than the limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(Headers(scope=scope), receive)
        except ApiError as error:
            answer = JSONResponse(error.body, error.status, error.headers)
            await answer(scope, receive, send)
            return
        if body is not None:  # else nobody is there any more to answer to
            await self._app(scope, _replayed(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body, None when the client left before its end; raises ApiError."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:_MAX_LENGTH_DIGITS]) > self._max_bytes:
            raise self._too_large()
        encoding = headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("identity", ""):
            raise ApiError(415, "A body with a Content-Encoding is not supported.")
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            more = message.get("more_body", False)
        if body and not _is_json(headers.get("content-type", "")):
            raise ApiError(
                415, "The body must be JSON, sent with 'Content-Type: application/json'."
            )
        return bytes(body)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is over the limit of {self._max_bytes} bytes.")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`body` first, then whatever the connection brings: its end."""
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay

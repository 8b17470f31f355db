"""Bodies as a whole: how large they may be, alone and together, and that they are JSON, before anything
parses them.

Knows nothing of what they say.
"""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bootstrap.errors import PdserveError
from cluster.api.errors import ApiError

BODIES_HELD = 8  # of the largest size; smaller ones, so many more

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_MAX_LENGTH_DIGITS = 18


class Bodies:
    """ASGI middleware: a handler gets at most `max_bytes` of JSON, in one piece.

    A body is read to its end before any handler runs, so one that hides its length costs no more
    than the limit. It is held until its answer is complete, and all that are held make up at most
    BODIES_HELD times the limit: beyond that a body gets 429.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, retry_after_s: Callable[[Scope], int]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._retry_after_s = retry_after_s
        self._num_held = 0  # bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            is_whole = await self._read(scope, receive, body)
            if is_whole:  # else nobody is there any more to answer to
                await self._app(scope, _replayed(bytes(body), receive), send)
        except _Refused as refused:
            answer = JSONResponse(refused.error.body, refused.error.status, refused.error.headers)
            await answer(scope, receive, send)
        finally:
            self._num_held -= len(body)

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> bool:
        """Fill `body`; False when the client left before its end. Raises _Refused."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:_MAX_LENGTH_DIGITS]) > self._max_bytes:
            raise self._too_large()
        encoding = headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("identity", ""):
            raise _Refused(ApiError(415, "A body with a Content-Encoding is not supported."))
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part = message.get("body", b"")
            body += part
            self._num_held += len(part)
            if len(body) > self._max_bytes:
                raise self._too_large()
            if self._num_held > BODIES_HELD * self._max_bytes:
                raise self._too_many(scope)
            more = message.get("more_body", False)
        if body and not _is_json(headers.get("content-type", "")):
            text = "The body must be JSON, sent with 'Content-Type: application/json'."
            raise _Refused(ApiError(415, text))
        return True

    def _too_large(self) -> "_Refused":
        text = f"The body is over the limit of {self._max_bytes} bytes."
        return _Refused(ApiError(413, text))

    def _too_many(self, scope: Scope) -> "_Refused":
        text = "The server holds as many bytes of requests as it may."
        retry = {"Retry-After": str(self._retry_after_s(scope))}
        return _Refused(ApiError(429, text, code="rate_limit_exceeded", headers=retry))


class _Refused(PdserveError):
    """The body is not read on; `error` says why. Handlers' own errors are none of these."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


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

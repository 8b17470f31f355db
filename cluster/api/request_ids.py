"""Names of calls: the client's `X-Request-Id` for people, the answer's id for the server itself.

The header is sent back and logged, if it is fit for a log line, and never tells two calls apart: a
client may send one twice, or another client's.
"""

import re
import uuid
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"

_FIT = re.compile(r"[A-Za-z0-9._:/+=-]{1,100}")  # leaves room for a choice's number on the wire

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class CallName:
    """`answer_id` is unique, and the only one to find a call by; `request_id` is what logs say.

    `tenant` is whose key the call came with, "" where there are no keys; `traceparent` is the W3C header
    of that name, "" where it is none.
    """

    answer_id: str
    request_id: str
    tenant: str = ""
    traceparent: str = ""

    @classmethod
    def new(cls, request: Request, prefix: str) -> "CallName":
        """A name for the call that `request` makes; its answer's id begins with `prefix`."""
        tenant = getattr(request.state, "tenant", "")
        given = request.headers.get("traceparent", "")
        return cls(
            answer_id=f"{prefix}{uuid.uuid4().hex}",
            request_id=request.state.request_id,
            tenant=tenant,
            traceparent=given if _TRACEPARENT.fullmatch(given) else "",
        )


class RequestIds:
    """ASGI middleware: `request.state.request_id` is set before any handler runs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER.encode(), b"").decode("latin-1")
        request_id = given if _FIT.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)

"""The gate before a call's body is read: turned away here, a call costs next to nothing.

Knows which routes generate, and asks the balancer whether there is any use in reading on.
"""

import re

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.errors import api_error
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.generation import GenerationFailed

MAX_BYTES = 1 << 30  # more than a body may have; of one that does not tell its length
_LENGTH = re.compile("[0-9]{1,9}")

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})


class Gate:
    """ASGI middleware: while the queue has no place for its tenant, a new call gets 429."""

    def __init__(self, app: ASGIApp, dispatcher: Dispatcher) -> None:
        self._app = app
        self._dispatcher = dispatcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        app: ASGIApp = self._app
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in GENERATING:
            length = Headers(scope=scope).get("content-length", "")
            num_bytes = int(length) if _LENGTH.fullmatch(length) else MAX_BYTES
            failure = self._dispatcher.turn_away(tenant_of(scope), num_bytes)
            if failure is not None:
                error = api_error(GenerationFailed(failure))
                app = JSONResponse(error.body, error.status, error.headers)
        await app(scope, receive, send)


def tenant_of(scope: Scope) -> str:
    """Whose key the call came with, "" where there are no keys."""
    tenant: str = scope.get("state", {}).get("tenant", "")
    return tenant

"""Answers of a balancer that leaves tell clients to connect anew, which then leads them elsewhere."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.balancer.dispatcher import Dispatcher


class Farewell:
    """ASGI middleware: `Connection: close` on every answer once the balancer leaves."""

    def __init__(self, app: ASGIApp, dispatcher: Dispatcher) -> None:
        self._app = app
        self._dispatcher = dispatcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._dispatcher.leaving:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, closing)

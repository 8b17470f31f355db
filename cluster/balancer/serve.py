"""The load balancer as a process: HTTP in front, workers behind, until a signal.

Owns uvicorn, the order of start and stop, and what signals mean. `cluster.balancer` below this file
knows no HTTP.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
import uvloop

from bootstrap.errors import ConfigError
from cluster.api.app import create_app
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.probe import probe_forever
from cluster.balancer.settings import BalancerSettings
from engine.tokenizer import Tokenizer

PROBE_TEXT = "Hello"
CLOSE_GRACE_S = 2  # for connections, once no stream has anything more to say

log = logging.getLogger(__name__)


def run_balancer(settings: BalancerSettings) -> None:
    """Serve in the foreground until SIGTERM or SIGINT; raises ConfigError for what cannot work.

    At the signal no connection is accepted any more; streams go on for `shutdown_grace_s`, then end
    with an error event.
    """
    tokenizer = Tokenizer(settings.model_dir)
    listener = listen(settings.host, settings.port)
    signals = ServerSignals()
    try:
        uvloop.run(serve(settings, tokenizer, listener, signals.stops))
    finally:
        signals.restore()
        listener.close()


class ServerSignals:
    """SIGTERM and SIGINT ask the server to stop, also before it has begun.

    uvicorn has handlers of its own while it serves, and raises the signal again after that.
    """

    def __init__(self) -> None:
        self._asked = False
        self._server: uvicorn.Server | None = None
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._previous = {number: signal.signal(number, self._stop) for number in numbers}

    def stops(self, server: uvicorn.Server) -> None:
        """The server that signals stop."""
        self._server = server
        server.should_exit = self._asked

    def restore(self) -> None:
        """Put back the handlers that were there before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self._asked = True
        if self._server is not None:
            self._server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """The bound socket for clients; raises ConfigError when the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"host={host!r} port={port}: {error}") from error


async def serve(
    settings: BalancerSettings,
    tokenizer: Tokenizer,
    listener: socket.socket,
    on_server: Callable[[uvicorn.Server], None],
) -> None:
    """Serve on `listener` until a signal, or until `should_exit` of the server given to `on_server`."""
    dispatcher = Dispatcher(settings, tokenizer)
    try:
        dispatcher.start()
        server = _Server(dispatcher)
        on_server(server)
        prompt = await dispatcher.text.encode(PROBE_TEXT)
        probe = asyncio.create_task(probe_forever(dispatcher, prompt), name="balancer-probe")
        address = "{}:{}".format(*listener.getsockname()[:2])
        log.info("serving %s at http://%s", settings.model_name, address)
        try:
            await server.serve([listener])
        finally:
            probe.cancel()
    finally:
        await dispatcher.stop()


class _Server(uvicorn.Server):
    """Gives streams their grace once it is asked to stop, and no longer."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        grace_s = dispatcher.settings.shutdown_grace_s
        config = uvicorn.Config(
            create_app(dispatcher),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(grace_s) + CLOSE_GRACE_S,
            timeout_keep_alive=30,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn, once."""
        dispatcher = self._dispatcher
        dispatcher.stopping = True
        loop = asyncio.get_running_loop()
        grace_s = dispatcher.settings.shutdown_grace_s
        late = loop.call_later(grace_s, dispatcher.abandon, "the load balancer stops")
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

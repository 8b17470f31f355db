"""The load balancer as a process: HTTP in front, workers behind, until a signal.

Owns uvicorn, the order of start and stop, and what signals mean. `cluster.balancer` below this file
knows no HTTP.
"""

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
import uvloop

from bootstrap.errors import ConfigError, RemoteFault
from cluster.api.access import Keys
from cluster.api.app import create_app
from cluster.api.broken_streams import no_fault
from cluster.api.tls import uvicorn_tls
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.leaving import Leaving, Phase
from cluster.balancer.probe import probe_forever
from cluster.balancer.settings import BalancerSettings
from engine.tokenizer import Tokenizer

PROBE_TEXT = "Hello"
BACKLOG = 2048  # connections that are not accepted yet
MAX_CONNECTIONS = 1 << 14  # beyond it uvicorn answers 503
STALLED_READER_S = 60.0
LEAVE_TICK_S = 0.1
CLOSE_GRACE_S = 2  # for connections, once no stream has anything more to say

log = logging.getLogger(__name__)


def run_balancer(settings: BalancerSettings) -> None:
    """Serve in the foreground until SIGTERM or SIGINT; raises ConfigError for what cannot work.

    At the signal `/ready` turns 503, and new requests are still served for `drain_delay_s`; then they get
    503 and streams go on for `shutdown_grace_s`, after which they end with an error event. A second
    signal ends all at once.
    """
    tokenizer = Tokenizer(settings.model_dir)
    listener = listen(settings.host, settings.port)
    signals = ServerSignals()
    try:
        uvloop.run(serve(settings, tokenizer, listener, signals.reach))
    finally:
        signals.restore()
        listener.close()


class ServerSignals:
    """SIGTERM and SIGINT ask the server to stop, also before it has begun; SIGHUP to read its keys.

    uvicorn has handlers of its own for the first two while it serves, and raises the signal again
    after that.
    """

    def __init__(self) -> None:
        self._asked = False
        self._server: BalancerServer | None = None
        handlers = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._reload,
        }
        self._previous = {number: signal.signal(number, do) for number, do in handlers.items()}

    def reach(self, server: "BalancerServer") -> None:
        """The server that signals are for."""
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

    def _reload(self, signum: int, frame: FrameType | None) -> None:
        if self._server is not None:
            self._server.reload_keys()


def listen(host: str, port: int) -> socket.socket:
    """The bound socket for clients; raises ConfigError when the address cannot be had.

    Its connections are reset when what was sent is not taken for STALLED_READER_S.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"host={host!r} port={port}: {error}") from error
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * STALLED_READER_S))
    return listener


async def serve(
    settings: BalancerSettings,
    tokenizer: Tokenizer,
    listener: socket.socket,
    on_server: "Callable[[BalancerServer], None]",
) -> None:
    """Serve on `listener` until a signal, or until `should_exit` of the server given to `on_server`."""
    keys = Keys.of(settings)
    address = "{}:{}".format(*listener.getsockname()[:2])
    url = f"{'http' if settings.ssl_certfile is None else 'https'}://{address}"
    dispatcher = Dispatcher(settings, tokenizer, url)
    try:
        dispatcher.start()
        server = BalancerServer(dispatcher, keys)
        on_server(server)
        prompt = await dispatcher.text.encode(PROBE_TEXT)
        probe = asyncio.create_task(probe_forever(dispatcher, prompt), name="balancer-probe")
        fenced = asyncio.create_task(_stop_when_fenced(dispatcher, server), name="balancer-fence")
        log.info("serving %s at %s", settings.model_name, url)
        try:
            await server.serve([listener])
        finally:
            probe.cancel()
            fenced.cancel()
    finally:
        await dispatcher.stop()
    if dispatcher.fenced.is_set():
        raise RemoteFault(f"the cluster counts the load balancer at {url} as ended")


async def _stop_when_fenced(dispatcher: Dispatcher, server: "BalancerServer") -> None:
    """Engines take nothing from an incarnation that ended: a new one has to begin."""
    await dispatcher.fenced.wait()
    server.should_exit = True


class BalancerServer(uvicorn.Server):
    """Gives streams their grace once it is asked to stop, and no longer."""

    def __init__(self, dispatcher: Dispatcher, keys: Keys) -> None:
        self._dispatcher = dispatcher
        self._keys = keys
        settings = dispatcher.settings
        grace_s = settings.shutdown_grace_s
        config = uvicorn.Config(
            create_app(dispatcher, keys),
            **uvicorn_tls(
                settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_key_password_file
            ),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(grace_s) + CLOSE_GRACE_S,
            timeout_keep_alive=30,
            limit_concurrency=MAX_CONNECTIONS,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(no_fault)

    def reload_keys(self) -> None:
        """Read the key files again."""
        self._keys.reload()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came; called by uvicorn's handlers."""
        insisted = self.should_exit
        super().handle_exit(sig, frame)
        self.force_exit = insisted

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn, once."""
        dispatcher, loop = self._dispatcher, asyncio.get_running_loop()
        settings = dispatcher.settings
        leaving = Leaving(loop.time(), settings.drain_delay_s, settings.shutdown_grace_s)
        await self._leave(leaving)
        dispatcher.stopping = True
        late = loop.call_at(leaving.ends_at, dispatcher.close, "the load balancer stops")
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    async def _leave(self, leaving: Leaving) -> None:
        """Answer whoever still comes until nothing runs any more."""
        dispatcher, loop = self._dispatcher, asyncio.get_running_loop()
        dispatcher.leave()
        for tick in itertools.count():
            phase = leaving.phase(len(self.server_state.tasks), loop.time())
            dispatcher.stopping = phase is not Phase.UNREADY
            if phase is Phase.OVER or self.force_exit:
                return
            await asyncio.sleep(LEAVE_TICK_S)
            await self.on_tick(tick)  # else answers would bear the date of the signal

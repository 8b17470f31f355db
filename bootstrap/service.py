"""The bootstrap service: the registry behind a socket.

Owns one thread, its inbox and the routes back to clients. Every rule of membership is the
registry's; this file moves messages and reads the clock.
"""

import logging
import math
import threading
import time

import zmq

from bootstrap import codec, sockets
from bootstrap.counts import Counts
from bootstrap.errors import ConfigError, LocalMisuse
from bootstrap.identity import Peer, WorkerRef, new_incarnation
from bootstrap.inbox import INBOX_COUNTS, Inbox
from bootstrap.membership import Evict, Heartbeat, Register, Subscribe, Unregister
from bootstrap.messages import Envelope
from bootstrap.registry import Registry, Send
from bootstrap.security import Security
from bootstrap.session import DEFAULT_LEASE_S

BIND_RETRY_S = 5.0  # how long a restart waits for its old port
STOP_TIMEOUT_S = 5.0

_BIND_PAUSE_S = 0.1
_TICKS_PER_LEASE = 20
_COUNTS = (
    *INBOX_COUNTS,
    "contradictory",  # a registration in another's name, or a message that is not for the service
    "undeliverable",  # answers and pushes whose connection is gone or full
    "internal_errors",  # bugs of ours that cost one message
)

log = logging.getLogger(__name__)


class BootstrapService:
    """One life of the service, between `start` and `stop`; what it knows ends with it."""

    def __init__(
        self,
        endpoint: str,
        lease_s: float = DEFAULT_LEASE_S,
        security: Security | None = None,
    ) -> None:
        """`endpoint` is `tcp://host:port`; port 0 lets the system pick. Raises ConfigError."""
        if not 0 < lease_s <= 3600:
            raise ConfigError(f"lease_s={lease_s}: allowed are more than 0 to 3600 seconds")
        host, _, self._port = endpoint.removeprefix("tcp://").rpartition(":")
        if not endpoint.startswith("tcp://") or not host or not self._port.isdecimal():
            raise ConfigError(f"bootstrap={endpoint!r}: tcp://host:port is needed")
        self._bind_endpoint = endpoint
        self._address = sockets.numeric_address("bootstrap", host, secured=security is not None)
        self._security = security
        self._ref = WorkerRef("bootstrap", new_incarnation())
        self._registry = Registry(self._ref, lease_s)
        self._tick_s = lease_s / _TICKS_PER_LEASE
        self._counts = Counts(_COUNTS)
        self._routes: dict[WorkerRef, bytes] = {}  # of whom the registry knows
        self._tick_at = float("-inf")
        self._me: Peer | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        """Where the service listens; valid after `start`."""
        if self._me is None:
            raise LocalMisuse("the bootstrap service has no endpoint before start")
        return self._me.endpoint

    def counters(self) -> dict[str, int]:
        """Messages so far, by what became of them; thread safe.

        `refused` are registrations and subscriptions beyond the registry's limits.
        """
        return {**self._counts.read(), "refused": self._registry.num_refused}

    def start(self) -> None:
        """Bind, waiting a few seconds for a port that an earlier life still holds, and serve.

        Raises ConfigError when the port stays taken.
        """
        self._context = sockets.new_context()
        self._inbox = Inbox(self._context, self._address, self._security, self._counts)
        try:
            self._me = Peer(self._ref, self._bind())
        except zmq.ZMQError as error:
            self._close()
            raise ConfigError(f"bootstrap={self._bind_endpoint!r}: {error}") from error
        self._wake = sockets.Wake()
        self._thread = threading.Thread(target=self._run, name="bootstrap", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the socket. Clients keep what they know and wait for the next life. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            self._wake.set()
            thread.join(STOP_TIMEOUT_S)
            self._wake.close()

    def _bind(self) -> str:
        port = "*" if int(self._port) == 0 else self._port
        give_up_at = time.monotonic() + BIND_RETRY_S
        while True:
            try:
                return self._inbox.bind(port)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() >= give_up_at:
                    raise
            time.sleep(_BIND_PAUSE_S)

    # --- the service's own thread --------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        self._inbox.register(poller)
        poller.register(self._wake.read_fd, zmq.POLLIN)
        try:
            while not self._stopping.is_set():
                wait_s = max(0.0, self._tick_at - time.monotonic())
                poller.poll(math.ceil(wait_s * 1000))
                try:
                    self._turn()
                except Exception:  # a server loop's edge: one message must not end it
                    self._counts.add("internal_errors")
                    log.exception("bootstrap service")
        finally:
            self._close()

    def _turn(self) -> None:
        for routing_id, envelope in self._inbox.receive():
            self._handle(routing_id, envelope)
        now = time.monotonic()
        if now < self._tick_at:
            return
        self._tick_at = now + self._tick_s
        for send in self._registry.tick(now):
            self._deliver(send, self._routes.get(send.to))
        self._routes = {ref: r for ref, r in self._routes.items() if self._registry.knows(ref)}

    def _handle(self, routing_id: bytes, envelope: Envelope) -> None:
        if envelope.recipient not in (None, self._ref):
            self._counts.add("misaddressed")
            return
        sends = self._decide(envelope, time.monotonic())
        if sends is None:
            self._counts.add("contradictory")
            return
        self._counts.add("received")
        sender = envelope.sender.ref
        if self._registry.knows(sender):
            self._routes[sender] = routing_id
        for send in sends:
            self._deliver(send, routing_id if send.to == sender else self._routes.get(send.to))

    def _decide(self, envelope: Envelope, now: float) -> list[Send] | None:
        sender, body = envelope.sender, envelope.body
        if isinstance(body, Heartbeat):
            return self._registry.heartbeat(sender.ref, body.load, now)
        if isinstance(body, Subscribe):
            return self._registry.subscribe(sender.ref, body, now)
        if isinstance(body, Register) and body.info.peer == sender:
            return self._registry.register(body, now)
        if isinstance(body, Unregister):
            return self._registry.unregister(sender.ref)
        if isinstance(body, Evict):
            return self._registry.evict(body.ref)
        return None

    def _deliver(self, send: Send, routing_id: bytes | None) -> None:
        assert self._me is not None
        try:
            if routing_id is None:
                raise zmq.ZMQError(zmq.EHOSTUNREACH)
            frame = codec.encode(Envelope(self._me, send.to, send.message))
            self._inbox.send(routing_id, frame)
        except zmq.ZMQError:  # a subscriber notices the gap in versions and asks again
            self._counts.add("undeliverable")

    def _close(self) -> None:
        self._inbox.close(sockets.LINGER_MS)
        self._context.term()

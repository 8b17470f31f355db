"""A process's mailbox: one inbox, and one-way messages to other inboxes.

Owns one thread and every socket of it. It knows envelopes, not what their bodies mean. Whatever
arrives that is no message for this incarnation is counted and dropped; the inbox lives on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

from bootstrap import codec, sockets
from bootstrap.counts import Counts
from bootstrap.errors import ConfigError, LocalMisuse
from bootstrap.identity import Peer, WorkerRef
from bootstrap.inbox import INBOX_COUNTS, Inbox
from bootstrap.messages import Envelope, Message
from bootstrap.outbox import Outbox
from bootstrap.security import Security

MAX_QUEUED = 1 << 16  # messages posted and not yet handed to a socket
STOP_TIMEOUT_S = 5.0

_POLL_MS = 1000
_COUNTS = (
    *INBOX_COUNTS,
    "posted",  # accepted by `post`
    "dropped",  # a queue was full, or the mailbox had stopped
    "oversized",  # ours, larger than a frame may be
    "unreachable",  # the endpoint is no address
    "handler_errors",  # `on_message` raised
)

log = logging.getLogger(__name__)


class Mailbox:
    """Bound from construction, live between `start` and `stop`.

    One thread uses the sockets and calls `on_message`; messages to one peer keep their order. A
    message is delivered at most once: a full queue, a lost connection or a dead peer loses it.
    """

    def __init__(
        self,
        me: WorkerRef,
        bind_host: str,
        on_message: Callable[[Peer, Message], None],
        security: Security | None = None,
    ) -> None:
        """Binds to any port of INBOX_PORTS; raises ConfigError for a host that cannot work."""
        address = sockets.own_address("bind_host", bind_host, secured=security is not None)
        self._on_message = on_message
        self._counts = Counts(_COUNTS)
        self._context = sockets.new_context()
        self._inbox = Inbox(self._context, address, security, self._counts)
        try:
            self.peer = Peer(me, self._inbox.bind_any())
        except zmq.ZMQError as error:
            self._inbox.close()
            self._context.term()
            raise ConfigError(f"bind_host={bind_host!r}: {error}") from error
        self._outbox = Outbox(self._context, security)
        self._wake = sockets.Wake()
        self._lock = threading.Lock()  # guards the three below
        self._queue: deque[tuple[str, bytes | None]] = deque()  # None: forget the endpoint
        self._stopping = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"mailbox-{me}", daemon=True)

    def start(self) -> None:
        """Begin to receive; what peers sent since construction has waited."""
        if self._closed:
            raise LocalMisuse("a stopped mailbox does not start again")
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def post(self, peer: Peer, message: Message) -> None:
        """Send `message` to `peer`, from any thread, without ever blocking."""
        frame = codec.encode(Envelope(self.peer, peer.ref, message))
        if len(frame) > codec.MAX_FRAME_BYTES:
            self._counts.add("oversized")
            log.error("%s to %s: %d bytes", type(message).__name__, peer.ref, len(frame))
            return
        self._counts.add("posted" if self._enqueue(peer.endpoint, frame) else "dropped")

    def forget(self, endpoint: str) -> None:
        """Close the connection to `endpoint` and drop what still queues for it."""
        self._enqueue(endpoint, None)

    def counters(self) -> dict[str, int]:
        """Messages so far, by what became of them."""
        return self._counts.read()

    def stop(self) -> None:
        """Let the last messages leave and close. Idempotent; returns within seconds."""
        with self._lock:
            self._stopping = True
            if self._closed:
                return
            self._wake.set()
            never_started = self._closed = self._thread.ident is None
        if never_started:
            self._close()
        elif threading.current_thread() is not self._thread:
            self._thread.join(STOP_TIMEOUT_S)
            if self._thread.is_alive():
                log.error("%s does not stop: its on_message is blocked", self._thread.name)

    def _enqueue(self, endpoint: str, frame: bytes | None) -> bool:
        with self._lock:
            if self._stopping or (frame is not None and len(self._queue) >= MAX_QUEUED):
                return False
            self._queue.append((endpoint, frame))
            if len(self._queue) == 1:
                self._wake.set()
            return True

    # --- the mailbox's own thread --------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        self._inbox.register(poller)
        poller.register(self._wake.read_fd, zmq.POLLIN)
        try:
            while not self._stopping:
                poller.poll(_POLL_MS)
                for _, envelope in self._inbox.receive():
                    self._deliver(envelope)
                self._flush()
                self._outbox.close_idle(time.monotonic())
            self._flush()
        finally:
            with self._lock:
                self._stopping = self._closed = True
            self._close()

    def _deliver(self, envelope: Envelope) -> None:
        if envelope.recipient != self.peer.ref:
            self._counts.add("misaddressed")
            return
        self._counts.add("received")
        try:
            self._on_message(envelope.sender, envelope.body)
        except Exception:  # a server loop's edge: one message must not end it
            self._counts.add("handler_errors")
            log.exception("%s from %s", type(envelope.body).__name__, envelope.sender.ref)

    def _flush(self) -> None:
        self._wake.clear()
        with self._lock:
            batch, self._queue = self._queue, deque()
        now = time.monotonic()
        for endpoint, frame in batch:
            if frame is None:
                self._outbox.forget(endpoint)
                continue
            try:
                if not self._outbox.send(endpoint, frame, now):
                    self._counts.add("dropped")
            except zmq.ZMQError as error:
                self._counts.add("unreachable")
                log.warning("cannot send to %s: %s", endpoint, error)

    def _close(self) -> None:
        self._inbox.close()
        self._outbox.close()
        self._wake.close()
        self._context.term()  # waits while the outbox lingers, no longer

"""A process's mailbox: one ROUTER inbox, and one-way messages to other inboxes.

Owns one thread and every socket of it. It knows envelopes, not what their bodies mean. Whatever
arrives that is no message for this incarnation is counted and dropped; the inbox lives on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from bootstrap import codec, sockets
from bootstrap.errors import ConfigError, WireError
from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import Envelope, Message
from bootstrap.outbox import Outbox
from bootstrap.security import Security, ZapGate

MAX_QUEUED = 1 << 16  # messages posted and not yet handed to a socket
STOP_TIMEOUT_S = 5.0

_POLL_MS = 1000
_BATCH = 256  # inbound messages between two looks at the outbound queue
_COUNTERS = (
    "posted",  # accepted by `post`
    "dropped",  # a queue was full, or the mailbox had stopped
    "oversized",  # ours, larger than a frame may be
    "unreachable",  # the endpoint is no address
    "received",  # handed to `on_message`
    "undecodable",  # no message of ours
    "misaddressed",  # for another incarnation
    "handler_errors",  # `on_message` raised
    "handshakes_failed",  # a wrong or missing secret, or no ZMQ peer
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
        """Binds to a port that the system picks; raises ConfigError for a host that cannot work."""
        address = sockets.bind_address(bind_host, secured=security is not None)
        self._on_message = on_message
        self._context = sockets.new_context()
        self._gate = None if security is None else ZapGate(self._context, security)
        self._inbox = sockets.open_inbox(self._context, security)
        self._watch = sockets.HandshakeWatch(self._inbox)
        try:
            self._inbox.bind(f"tcp://{address}:*")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"bind_host={bind_host!r}: {error}") from error
        self.peer = Peer(me, self._inbox.last_endpoint.decode().rstrip("\0"))
        self._outbox = Outbox(self._context, security)
        self._wake = sockets.Wake()
        self._lock = threading.Lock()  # guards the four below
        self._queue: deque[tuple[str, bytes | None]] = deque()  # None: forget the endpoint
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._stopping = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"mailbox-{me}", daemon=True)

    def start(self) -> None:
        """Begin to receive. What peers sent since construction has waited."""
        self._thread.start()

    def post(self, peer: Peer, message: Message) -> None:
        """Send `message` to `peer`, from any thread, without ever blocking."""
        frame = codec.encode(Envelope(self.peer, peer.ref, message))
        if len(frame) > codec.MAX_FRAME_BYTES:
            self._count("oversized")
            log.error("%s to %s: %d bytes", type(message).__name__, peer.ref, len(frame))
            return
        self._enqueue(peer.endpoint, frame)

    def forget(self, endpoint: str) -> None:
        """Close the connection to `endpoint` and drop what still queues for it."""
        self._enqueue(endpoint, None)

    def counters(self) -> dict[str, int]:
        """Messages so far, by what became of them."""
        with self._lock:
            return dict(self._counts)

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

    def _enqueue(self, endpoint: str, frame: bytes | None) -> None:
        with self._lock:
            if self._stopping or (frame is not None and len(self._queue) >= MAX_QUEUED):
                self._counts["dropped"] += frame is not None
                return
            self._counts["posted"] += frame is not None
            self._queue.append((endpoint, frame))
            if len(self._queue) == 1:
                self._wake.set()

    def _count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by

    # --- the mailbox's own thread ------------------------------------------------------------

    def _run(self) -> None:
        poller = self._poller()
        try:
            while not self._stopping:
                ready = dict(poller.poll(_POLL_MS))
                if self._gate is not None and self._gate.socket in ready:
                    self._gate.answer()
                if self._inbox in ready:
                    self._receive_batch()
                if self._watch.socket in ready:
                    self._note_failed_handshakes(self._watch.drain())
                self._flush()
                self._outbox.close_idle(time.monotonic())
            self._flush()
        finally:
            with self._lock:
                self._stopping = self._closed = True
            self._close()

    def _poller(self) -> Any:
        poller = zmq.Poller()
        poller.register(self._inbox, zmq.POLLIN)
        poller.register(self._wake.read_fd, zmq.POLLIN)
        poller.register(self._watch.socket, zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate.socket, zmq.POLLIN)
        return poller

    def _receive_batch(self) -> None:
        for _ in range(_BATCH):
            try:
                parts = self._inbox.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(parts)

    def _receive(self, parts: list[bytes]) -> None:
        if len(parts) != 2:  # routing id and frame
            self._count("undecodable")
            return
        try:
            envelope = codec.decode(parts[1])
        except WireError as error:
            self._count("undecodable")
            log.debug("dropped: %s", error)
            return
        if envelope.recipient != self.peer.ref:
            self._count("misaddressed")
            return
        self._count("received")
        try:
            self._on_message(envelope.sender, envelope.body)
        except Exception:  # noqa: BLE001 - a server loop's edge: one message must not end it
            self._count("handler_errors")
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
                    self._count("dropped")
            except zmq.ZMQError as error:
                self._count("unreachable")
                log.warning("cannot send to %s: %s", endpoint, error)

    def _note_failed_handshakes(self, num_failed: int) -> None:
        before = self._counts["handshakes_failed"]
        self._count("handshakes_failed", num_failed)
        if num_failed and (before + num_failed).bit_length() > before.bit_length():
            log.warning(
                "%d handshakes failed at %s: a wrong or missing cluster secret, or no ZMQ peer",
                before + num_failed,
                self.peer.endpoint,
            )

    def _close(self) -> None:
        self._watch.close()
        self._inbox.close(linger=0)
        self._outbox.close()
        if self._gate is not None:
            self._gate.close()
        self._wake.close()
        self._context.term()  # waits for the outbox to linger, no longer

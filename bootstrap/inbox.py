"""A bound ROUTER and all that guards it: frames come in, envelopes come out.

Owns the socket, the gate that asks for the cluster secret and the watch over failed handshakes.
Whatever is no envelope of ours is counted and dropped, and the socket lives on.
"""

import errno
import logging
import random
from collections.abc import Iterator

import zmq

from bootstrap import codec, sockets
from bootstrap.counts import Counts
from bootstrap.errors import WireError
from bootstrap.messages import Envelope
from bootstrap.security import Security, ZapGate

INBOX_COUNTS = (
    "received",  # messages for us
    "undecodable",  # frames that are no message of ours
    "muted",  # frames of connections that had sent too many of those; nobody read them
    "misaddressed",  # messages for another incarnation
    "handshakes_failed",  # a wrong or missing cluster secret, or no ZMQ peer
)

# Where mailboxes listen: below the range that Linux gives to outgoing connections and transports, so
# that a firewall can tell the control plane from pages of KV.
INBOX_PORTS = range(20000, 32768)

MAX_MALFORMED = 1000  # on one connection; nothing that comes after them on it is read
MAX_SUSPECTS = 4096  # connections that are remembered for having sent any

_BATCH = 256  # messages between two looks at everything else the thread does

log = logging.getLogger(__name__)


class Inbox:
    """Belongs to the thread that polls it. `counts` must have INBOX_COUNTS."""

    def __init__(
        self, context: sockets.Context, address: str, security: Security | None, counts: Counts
    ) -> None:
        self._counts = counts
        self._malformed: dict[bytes, int] = {}  # by routing id, the longest unheard first
        self._gate = None if security is None else ZapGate(context, security)
        self._address = address
        self._socket = sockets.open_inbox(context, address, security)
        self._watch = sockets.HandshakeWatch(self._socket)

    def bind(self, port: str) -> str:
        """Listen on `port`; the endpoint. Raises zmq.ZMQError."""
        self._socket.bind(f"tcp://{self._address}:{port}")
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def bind_any(self) -> str:
        """Listen on a port of INBOX_PORTS; the endpoint. Raises zmq.ZMQError."""
        for port in random.sample(INBOX_PORTS, len(INBOX_PORTS)):
            try:
                return self.bind(str(port))
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise zmq.ZMQError(errno.EADDRINUSE)

    def register(self, poller: zmq.Poller) -> None:
        """Have `poller` wake up for all of our sockets."""
        for socket in (self._socket, self._watch.socket, self._gate and self._gate.socket):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)

    def receive(self) -> Iterator[tuple[bytes, Envelope]]:
        """Admit peers, then yield at most a batch of (routing id, envelope). Never blocks."""
        if self._gate is not None:
            self._gate.answer_all()
        self._note_failed(self._watch.drain())
        for _ in range(_BATCH):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if self._malformed.get(parts[0], 0) >= MAX_MALFORMED:
                self._counts.add("muted")
                continue
            envelope = self._decode(parts)
            if envelope is not None:
                yield parts[0], envelope

    def send(self, routing_id: bytes, frame: bytes) -> None:
        """Answer over the connection of `routing_id`.

        Raises zmq.Again when its queue is full and zmq.ZMQError when it is gone.
        """
        self._socket.send_multipart([routing_id, frame], zmq.NOBLOCK)

    def close(self, linger_ms: int = 0) -> None:
        """Close all sockets; answers still queued may leave for `linger_ms`."""
        self._watch.close()
        self._socket.close(linger=linger_ms)
        if self._gate is not None:
            self._gate.close()

    def _decode(self, parts: list[bytes]) -> Envelope | None:
        try:
            if len(parts) != 2:
                raise WireError(f"{len(parts)} frames instead of a routing id and one frame")
            return codec.decode(parts[1])
        except WireError as error:
            self._counts.add("undecodable")
            log.debug("dropped: %s", error)
            self._suspect(parts[0])
            return None

    def _suspect(self, routing_id: bytes) -> None:
        """A connection cannot be closed from this side: what it goes on sending is not looked at."""
        num = self._malformed.pop(routing_id, 0) + 1
        self._malformed[routing_id] = num
        if len(self._malformed) > MAX_SUSPECTS:
            del self._malformed[next(iter(self._malformed))]
        if num == MAX_MALFORMED:
            log.warning("a connection is muted after %d malformed messages", num)

    def _note_failed(self, num_failed: int) -> None:
        if num_failed == 0:
            return
        total = self._counts.add("handshakes_failed", num_failed)
        if total.bit_length() > (total - num_failed).bit_length():  # at 1, 2, 4, 8, ...
            log.warning(
                "%d failed handshakes on %s: wrong or missing cluster secret, or no ZMQ peer",
                total,
                self._socket.getsockopt_string(zmq.LAST_ENDPOINT),
            )

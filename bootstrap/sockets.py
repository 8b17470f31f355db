"""How ZMQ sockets are opened here: limits, timeouts, addresses, encryption.

Owns every socket option in one place, the wake-up pipe, and the watch over failed handshakes. It
knows no messages; each socket belongs to the one thread that uses it.
"""

import ipaddress
import os
import socket as std_socket

import zmq
from zmq.utils.monitor import recv_monitor_message

from bootstrap.codec import MAX_FRAME_BYTES
from bootstrap.errors import ConfigError
from bootstrap.security import Security

Socket = zmq.Socket[bytes]
Context = zmq.Context[zmq.Socket[bytes]]

QUEUE_MESSAGES = 2048  # per connection and direction; beyond it a sender drops
LINGER_MS = 500  # how long last messages may still leave after a stop
MAX_SOCKETS = 8192

_HEARTBEAT_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 5000
_HANDSHAKE_MS = 3000  # who has not shown the secret by then is cut off
_CONNECT_TIMEOUT_MS = 3000
_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 500


def new_context() -> Context:
    """A ZMQ context of its owner's own: one gate, one life, nothing shared."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


def open_inbox(context: Context, address: str, security: Security | None) -> Socket:
    """A ROUTER that will bind to `address`. A frame over the limit costs its sender the connection.

    IPv6 is on only where it is needed: with it an IPv4 endpoint would read `[::ffff:...]`.
    """
    inbox = _open(context, zmq.ROUTER)
    inbox.ipv6 = address.startswith("[")
    inbox.maxmsgsize = MAX_FRAME_BYTES
    inbox.router_mandatory = True  # an answer to nobody raises instead of vanishing
    if security is not None:
        security.secure_server(inbox)
    return inbox


def open_outlet(
    context: Context, endpoint: str, security: Security | None, queue_unconnected: bool = True
) -> Socket:
    """A DEALER that connects to `endpoint` and keeps doing so.

    Meanwhile messages queue or, without `queue_unconnected`, sending raises zmq.Again.
    Raises zmq.ZMQError when `endpoint` is no address.
    """
    outlet = _open(context, zmq.DEALER)
    outlet.maxmsgsize = MAX_FRAME_BYTES
    outlet.ipv6 = True  # a name may have either kind of address
    outlet.immediate = not queue_unconnected
    outlet.reconnect_ivl = _RECONNECT_MS
    outlet.reconnect_ivl_max = _RECONNECT_MAX_MS
    outlet.connect_timeout = _CONNECT_TIMEOUT_MS
    if security is not None:
        security.secure_client(outlet)
    try:
        outlet.connect(endpoint)
    except zmq.ZMQError:
        outlet.close(linger=0)
        raise
    return outlet


def _open(context: Context, kind: int) -> Socket:
    socket = context.socket(kind)
    socket.linger = LINGER_MS
    socket.sndhwm = QUEUE_MESSAGES
    socket.rcvhwm = QUEUE_MESSAGES
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.heartbeat_ivl = _HEARTBEAT_MS
    socket.heartbeat_timeout = _HEARTBEAT_TIMEOUT_MS
    return socket


def numeric_address(key: str, host: str, secured: bool) -> str:
    """`host` as the numeric address to bind, IPv6 in brackets.

    Raises ConfigError, naming `key`, for what does not resolve and, without a secret, for anything
    but loopback.
    """
    name = host.removeprefix("[").removesuffix("]")
    try:
        found = std_socket.getaddrinfo(name, None, type=std_socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{key}={host!r}: {error}") from error
    found.sort(key=lambda entry: entry[0] != std_socket.AF_INET)  # a name's IPv4 first
    text = str(found[0][4][0])
    address = ipaddress.ip_address(text.partition("%")[0])
    if not secured and not address.is_loopback:
        raise ConfigError(f"{key}={host!r}: without secret_file only loopback is allowed")
    return f"[{text}]" if address.version == 6 else text


def own_address(key: str, host: str, secured: bool) -> str:
    """`numeric_address` of a host that peers can connect to: no wildcard."""
    address = numeric_address(key, host, secured)
    if address in ("0.0.0.0", "[::]"):
        raise ConfigError(f"{key}={host!r}: an address that peers can connect to is needed")
    return address


class Wake:
    """A pipe that ends a poll from another thread. `set` is thread safe and never blocks."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self._write_fd, False)

    def set(self) -> None:
        """Make `read_fd` readable; a full pipe already is."""
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:
            return

    def clear(self) -> None:
        """Read what was written."""
        try:
            os.read(self.read_fd, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both ends; no `set` may follow."""
        os.close(self.read_fd)
        os.close(self._write_fd)


class HandshakeWatch:
    """Counts handshakes that failed on one socket: a wrong or missing secret, or no ZMQ at all."""

    def __init__(self, watched: Socket) -> None:
        self._watched = watched
        self.socket = watched.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )

    def drain(self) -> int:
        """Failures since the last call."""
        num_failed = 0
        while self.socket.poll(0):
            recv_monitor_message(self.socket, zmq.NOBLOCK)
            num_failed += 1
        return num_failed

    def close(self) -> None:
        """Stop watching; call before the watched socket closes."""
        self._watched.disable_monitor()
        self.socket.close(linger=0)

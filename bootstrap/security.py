"""The cluster secret: one CURVE key pair that every member derives from it.

Owns the derivation and the gate that lets only holders of the secret in. It knows no messages.
Without a secret sockets are plain, which is for loopback only (`bootstrap.sockets` refuses the rest).
"""

import hashlib
import hmac
import logging
import os
import stat
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from bootstrap.errors import ConfigError

MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 1 << 16

_SALT = b"pdserve cluster secret v1"
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by ZeroMQ RFC 27
_ZAP_PARTS = 7  # version, request id, domain, address, routing id, mechanism, client key
_ZAP_DOMAIN = b"pdserve"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Security:
    """The cluster's CURVE key pair, Z85 text. Equal secrets give equal pairs on every host.

    Server and client use the same pair, so the public half is a secret too: it never crosses the
    wire in the clear, and without it not even a handshake starts.
    """

    public_key: bytes = field(repr=False)
    secret_key: bytes = field(repr=False)

    @classmethod
    def from_secret(cls, secret: bytes) -> "Security":
        """Derive the pair; raises ConfigError when `secret` is shorter than 16 bytes."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"cluster secret of {len(secret)} bytes: at least {MIN_SECRET_BYTES} are needed"
            )
        if not zmq.has("curve"):
            raise ConfigError("cluster secret: this libzmq has no CURVE; install pyzmq's wheel")
        seed = hashlib.scrypt(secret, salt=_SALT, n=1 << 14, r=8, p=1, dklen=32)
        secret_key = z85.encode(seed)
        return cls(zmq.curve_public(secret_key), secret_key)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Security":
        """Read the secret from `path`, ignoring line ends after it; raises ConfigError."""
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                secret = file.read(MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"secret_file={os.fspath(path)!r}: {error}") from error
        if len(secret) > MAX_SECRET_BYTES:
            raise ConfigError(
                f"secret_file={os.fspath(path)!r}: more than {MAX_SECRET_BYTES} bytes"
            )
        if mode & stat.S_IROTH:
            # Mounted secrets are often world-readable inside their own container: no refusal.
            log.warning("secret_file=%r is readable by every user of this host", os.fspath(path))
        return cls.from_secret(secret.rstrip(b"\r\n"))

    def secure_server(self, socket: "zmq.Socket[bytes]") -> None:
        """Make a ZMQ socket that will bind take only clients who hold the secret."""
        socket.curve_server = True
        socket.curve_secretkey = self.secret_key
        socket.curve_publickey = self.public_key
        socket.zap_domain = _ZAP_DOMAIN

    def secure_client(self, socket: "zmq.Socket[bytes]") -> None:
        """Make a ZMQ socket that will connect talk only to servers who hold the secret."""
        socket.curve_secretkey = self.secret_key
        socket.curve_publickey = self.public_key
        socket.curve_serverkey = self.public_key


class ZapGate:
    """Answers ZeroMQ's authentication requests (ZAP, RFC 27) of one context on its owner's thread.

    CURVE alone admits whoever knows the server's public key; the gate admits the cluster's own pair
    only. It must be open before any secured socket binds.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", security: Security) -> None:
        self._expected = z85.decode(security.public_key)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP_ENDPOINT)

    def answer_all(self) -> None:
        """Answer every request that waits."""
        while self.socket.poll(0):
            self._answer(self.socket.recv_multipart())

    def _answer(self, parts: list[bytes]) -> None:
        admitted = (
            len(parts) == _ZAP_PARTS
            and parts[5] == b"CURVE"
            and hmac.compare_digest(parts[6], self._expected)
        )
        version, request_id = parts[0], parts[1] if len(parts) > 1 else b""
        verdict = (b"200", b"OK") if admitted else (b"400", b"not a member of this cluster")
        self.socket.send_multipart([version, request_id, *verdict, b"", b""])

    def close(self) -> None:
        """Close the gate; handshakes after it are refused."""
        self.socket.close(linger=0)

"""Keys that open the API: a file with one key on each line, read again when it changes.

Knows nothing of HTTP. No key is ever logged or put into a message.
"""

import hashlib
import hmac
import logging
import os
from pathlib import Path

from bootstrap.errors import ConfigError

MAX_FILE_BYTES = 1 << 20

log = logging.getLogger(__name__)

_Version = tuple[int, int, int]  # inode, time of the last change in ns, size


class KeyFile:
    """Holds the keys of the file's last version that was a list of keys, and never none.

    A line that begins with `#` is a comment; space around a key is no part of it. A version that
    cannot be read or has no key is logged once and changes nothing: the file may be half written.
    """

    def __init__(self, name: str, path: str) -> None:
        """`name` is the setting that names the file, for messages. Raises ConfigError."""
        self._name = name
        self._path = Path(path)
        self._version: _Version | None = self._stat()
        self._digests = self._read()

    def allows(self, given: str) -> bool:
        """Whether `given` is one of the keys, in a time that tells nothing about any of them."""
        self._reload_if_changed()
        digest = key_digest(given)
        allowed = False
        for known in self._digests:
            allowed |= hmac.compare_digest(known, digest)  # never `or`: all are compared
        return allowed

    def reload(self) -> None:
        """Read the file now, whatever its time of change says."""
        try:
            self._version = self._stat()
            self._digests = self._read()
        except ConfigError as error:
            log.error("%s; the keys read before stay in force", error)
        else:
            log.info("%s: %d keys read", self._name, len(self._digests))

    def _reload_if_changed(self) -> None:
        try:
            changed = self._stat() != self._version
        except ConfigError:
            changed = self._version is not None
        if changed:
            self._version = None  # known to be gone, unless `reload` finds it
            self.reload()

    def _stat(self) -> _Version:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise self._error(error.strerror) from error
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> frozenset[bytes]:
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1).decode()
        except OSError as error:
            raise self._error(error.strerror) from error
        except UnicodeDecodeError:  # which would quote the file
            raise self._error("not a text in UTF-8") from None
        if len(text) > MAX_FILE_BYTES:
            raise self._error(f"over {MAX_FILE_BYTES} bytes")
        keys = frozenset(map(key_digest, keys_in(text)))
        if not keys:
            raise self._error("holds no key: allowed is one key on each line, and # comments")
        return keys

    def _error(self, why: str | None) -> ConfigError:
        return ConfigError(f"{self._name}={str(self._path)!r}: {why}")


def keys_in(text: str) -> list[str]:
    """The keys of a key file's text, in its order."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def key_digest(key: str) -> bytes:
    """What stands for a key: of equal length for all, so that comparing tells nothing of theirs."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

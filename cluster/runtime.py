"""The files of a running `up`: its record, the cluster secret, what its supervisor sees, Ray's own.

Owns one folder per running `up` under one folder of this user, both closed to others, and the choice
of free ports. A folder whose `up` is gone is removed by the next command that looks.
"""

import errno
import os
import random
import secrets
import shutil
import socket
import stat
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from bootstrap.errors import ConfigError
from kv_transfer.backends.process import start_time

ROOT_VARIABLE = "PDSERVE_RUNTIME_DIR"

_RECORD = "up.json"
_SUPERVISION = "supervision.json"
# Below the range that Linux gives to outgoing connections: a restarted service finds its port free.
_PORTS = range(20000, 32768)
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_REMOVE_TRIES = 20
_REMOVE_PAUSE_S = 0.1

_T = TypeVar("_T")


class UpRecord(msgspec.Struct, frozen=True):
    """One running `up`. Without an endpoint of its own `url` is the bootstrap service's.

    `drain_s` is what its engines may take to end what runs, once it is told to end;
    `admin_key_file` what its endpoint knows administrators by.
    """

    pid: int
    start_time: int
    url: str
    model: str
    drain_s: float
    admin_key_file: str | None = None


class SupervisedWorker(msgspec.Struct, frozen=True):
    """One worker as `up`'s supervisor last saw it."""

    worker_id: str
    role: str
    state: str
    stage: str
    incarnation: str | None
    num_restarts: int
    retry_in_s: float
    last_error: str


class _Supervision(msgspec.Struct, frozen=True):
    workers: tuple[SupervisedWorker, ...]


class RuntimeFolder:
    """One `up`'s folder, from `create` to `remove`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls) -> "RuntimeFolder":
        """A new folder for this process; raises ConfigError when another user owns the parent."""
        path = _root(create=True) / str(os.getpid())
        shutil.rmtree(path, ignore_errors=True)  # of an earlier process with our pid
        path.mkdir(mode=0o700)
        return cls(path)

    def write_record(
        self, url: str, model: str, drain_s: float, admin_key_file: str | None = None
    ) -> None:
        """Make this `up` known to `status` and `down`."""
        pid = os.getpid()
        started = start_time(pid)
        assert started is not None
        record = UpRecord(pid, started, url, model, drain_s, admin_key_file)
        self._write(_RECORD, msgspec.json.encode(record))

    def write_supervision(self, workers: tuple[SupervisedWorker, ...]) -> None:
        """Replace what the supervisor last saw."""
        self._write(_SUPERVISION, msgspec.json.encode(_Supervision(workers)))

    def write_secret(self, name: str) -> str:
        """A new random secret in a file of its own, readable by this user alone; its path."""
        self._write(name, secrets.token_hex(32).encode())
        return str(self.path / name)

    def remove(self) -> None:
        """Remove everything, also what processes that are just ending still write."""
        for _ in range(_REMOVE_TRIES):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                return
            time.sleep(_REMOVE_PAUSE_S)
        raise ConfigError(f"{ROOT_VARIABLE}: {self.path} cannot be removed")

    def _write(self, name: str, content: bytes) -> None:
        partial = self.path / f".{name}"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:
            file.write(content)
        partial.replace(self.path / name)


def running() -> list[UpRecord]:
    """Every `up` of this user that runs now; what dead ones left behind is removed."""
    root = _root(create=False)
    records = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if not path.name.isdigit():
            continue
        record = _read(path / _RECORD, UpRecord)
        pid = int(path.name)
        alive = start_time(pid)
        if record is not None and alive == record.start_time:
            records.append(record)
        elif alive is None or record is not None:
            shutil.rmtree(path, ignore_errors=True)
    return records


def folder_of(record: UpRecord) -> Path:
    """Where a running `up` keeps its files."""
    return _root(create=False) / str(record.pid)


def supervision(record: UpRecord) -> tuple[SupervisedWorker, ...]:
    """What the supervisor of `record`'s `up` last saw; empty when it has seen nothing yet."""
    found = _read(folder_of(record) / _SUPERVISION, _Supervision)
    return () if found is None else found.workers


def supervision_at(url: str) -> tuple[SupervisedWorker, ...]:
    """The same of this user's `up` that serves `url`; empty when there is none."""
    record = running_at(url)
    return () if record is None else supervision(record)


def running_at(url: str) -> UpRecord | None:
    """This user's `up` that serves `url`."""
    return next((record for record in running() if record.url == url), None)


def free_port(host: str) -> int:
    """A port on `host` that nobody uses now, one that stays free while nobody listens on it."""
    for port in random.sample(_PORTS, len(_PORTS)):
        if port_is_free(host, port):
            return port
    raise ConfigError(f"host={host!r}: no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there; raises ConfigError when `host` is no address of ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except OSError as error:
        raise ConfigError(f"host={host!r}: {error}") from error
    with closing(socket.socket(family, kind, protocol)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError as error:
            raise ConfigError(
                f"port={port}: {error.strerror}: allowed are 1024 to 65535"
            ) from error
        except OSError as error:
            if error.errno in _NOT_OURS:
                raise ConfigError(f"host={host!r}: {error.strerror}") from error
            return False
    return True


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _root(create: bool) -> Path:
    given = os.environ.get(ROOT_VARIABLE)
    root = Path(given) if given else Path(tempfile.gettempdir()) / f"pdserve-{os.getuid()}"
    if create:
        root.mkdir(mode=0o700, parents=given is not None, exist_ok=True)
    try:
        info = root.lstat()
    except FileNotFoundError:
        return root
    # Anyone may have made the folder in /tmp first, to read the secret or to be followed elsewhere.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise ConfigError(
            f"{ROOT_VARIABLE}={str(root)!r}: a folder that only its owner, this user, may enter is"
            " needed (mode 0700)"
        )
    return root

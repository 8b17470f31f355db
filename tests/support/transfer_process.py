"""A transfer target in a process of its own, told over a pipe what to check or do."""

import fcntl
import hashlib
import multiprocessing
import os
import queue
import signal
import sys
import termios
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from bootstrap.membership import TransferMetadata
from kv_transfer.backends.port import TransferBackend
from kv_transfer.backends.registry import make_backend
from kv_transfer.layout import Run
from kv_transfer.pump import TransferPump
from kv_transfer.severing import sever

HOST = "127.0.0.1"
_spawn = multiprocessing.get_context("spawn")


class _Target:
    """The far end: every public method is a command."""

    def __init__(self, backend: TransferBackend, num_bytes: int) -> None:
        self._view = backend.allocate(num_bytes)
        self._ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.pump = TransferPump(backend, lambda _tag, error: self._ended.put(error))

    def fill(self, value: int) -> None:
        """Every byte becomes `value`."""
        self._view[:] = bytes([value]) * len(self._view)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Bytes of the arena."""
        return bytes(self._view[offset : offset + num_bytes])

    def digest(self, offset: int, num_bytes: int) -> str:
        """Hash of bytes of the arena."""
        return hashlib.blake2b(self._view[offset : offset + num_bytes]).hexdigest()

    def write(self, metadata: TransferMetadata, runs: Sequence[Run]) -> str | None:
        """Write to another target; the outcome's error."""
        self.pump.add_peer(metadata)
        self.pump.submit(None, metadata.agent_name, runs)
        return self._ended.get(timeout=60)

    def cpu_s(self) -> float:
        """CPU time of the process so far."""
        return time.process_time()

    def open_inbound(self) -> None:
        """Somebody may write to this target; it is so from the start."""
        self.pump.open_inbound()

    def close_inbound(self) -> None:
        """Nobody writes to this target any more."""
        self.pump.close_inbound()

    def sever(self, host: str) -> int:
        """Shut down the connections with a host."""
        return sever(host)

    def num_unread(self) -> int:
        """Bytes that have come to this process's TCP connections and wait to be read."""
        return sum(_num_unread(int(name)) for name in os.listdir("/proc/self/fd"))


def _num_unread(fd: int) -> int:
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            return 0
        answer = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    except OSError:  # gone, or a socket that listens
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _serve(conn: Connection, backend_name: str, agent_name: str, num_bytes: int) -> None:
    backend = make_backend(backend_name, agent_name, HOST)
    target = _Target(backend, num_bytes)
    metadata = backend.metadata()
    target.pump.start()
    target.pump.open_inbound()
    conn.send(msgspec.msgpack.encode(metadata))
    while True:
        try:
            command, arguments = conn.recv()
        except EOFError:
            break
        if command == "exit":
            break
        conn.send(getattr(target, command)(*arguments))
    target.pump.stop()


class TargetProcess:
    """A running target; `metadata` is what its peers need."""

    def __init__(self, backend_name: str, agent_name: str, num_bytes: int) -> None:
        self._conn, far_end = _spawn.Pipe()
        arguments = (far_end, backend_name, agent_name, num_bytes)
        self._process = _spawn.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        far_end.close()
        self.metadata = msgspec.msgpack.decode(self._receive(), type=TransferMetadata)

    @property
    def name(self) -> str:
        """The target's agent name."""
        return self.metadata.agent_name

    def ask(self, command: str, *arguments: object) -> Any:
        """Run a command of `_Target` there and wait for its answer."""
        self.begin(command, *arguments)
        return self._receive()

    def begin(self, command: str, *arguments: object) -> None:
        """Start a command; `finish` waits for its answer."""
        self._conn.send((command, arguments))

    def finish(self) -> Any:
        """The answer to `begin`."""
        return self._receive()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.signal(signal.SIGKILL)
        self._process.join(60)

    def exit(self) -> int | None:
        """End in good order; the exit status."""
        if self._process.is_alive():
            self._conn.send(("exit", ()))
            self._process.join(60)
        return self._process.exitcode

    def _receive(self) -> Any:
        assert self._conn.poll(90), "the target does not answer"
        return self._conn.recv()

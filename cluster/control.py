"""The socket over which a running `up` takes orders: one JSON order on a line, answers on lines.

Owns the socket in `up`'s runtime folder, which only its user may enter, and the threads that serve it.
Knows nothing of what an order does.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bootstrap.errors import ConfigError, RemoteFault
from cluster.order_book import OrderStatus
from cluster.orders import Answer, Ended, Order, Progress, Refused
from cluster.rollout import RolloutState

NAME = "control"
MAX_LINE_BYTES = 1 << 16
MAX_CLIENTS = 8

_READ_TIMEOUT_S = 5.0  # for the order of a client that has connected
_FOLLOW_S = 0.2
_APPEAR_S = 10.0  # for a supervisor's word about an order that it has taken
_SILENCE_S = 60.0  # of an `up` that carries out an order: it tells where it stands more often

log = logging.getLogger(__name__)


class ControlServer:
    """Serves from `start` to `stop`. An order goes on when its client goes away."""

    def __init__(
        self,
        folder: Path,
        give: Callable[[Order], int | str],
        statuses: Callable[[], Sequence[OrderStatus]],
    ) -> None:
        """`give` has an order carried out: its number, or why it is not. Both are thread safe."""
        self._path = folder / NAME
        self._give = give
        self._statuses = statuses
        self._places = threading.Semaphore(MAX_CLIENTS)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Listen. Raises ConfigError when the folder's name is too long for a socket's."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self._path))
        except OSError as error:
            self._listener.close()
            raise ConfigError(f"{self._path}: no socket can be made there: {error}") from error
        self._path.chmod(0o600)
        self._listener.listen(MAX_CLIENTS)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def stop(self) -> None:
        """Take no more orders."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._places.acquire(blocking=False):
                threading.Thread(
                    target=self._serve, args=(client,), name="control-client", daemon=True
                ).start()
            else:
                client.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(_READ_TIMEOUT_S)
                with client.makefile("rb") as lines:
                    line = lines.readline(MAX_LINE_BYTES)
                for answer in self._answers(line):
                    client.sendall(msgspec.json.encode(answer) + b"\n")
        except OSError as error:
            log.debug("a client of the control socket went away: %s", error)
        except Exception:  # a server's edge: one order must not end it
            log.exception("an order failed")
        finally:
            self._places.release()

    def _answers(self, line: bytes) -> Iterator[Answer]:
        try:
            order: Order = msgspec.json.decode(line, type=Order)
        except msgspec.MsgspecError as error:
            yield Refused(f"no order: {error}")
            return
        number = self._give(order)
        if isinstance(number, str):
            yield Refused(number)
            return
        log.info("order %d: %s", number, order)
        yield from self._follow(number)

    def _follow(self, number: int) -> Iterator[Answer]:
        """Say where an order stands until it is over, also when that is unchanged."""
        missing_since = time.monotonic()
        while not self._stopping.wait(_FOLLOW_S):
            status = next((s for s in self._statuses() if s.number == number), None)
            if status is None:
                if time.monotonic() - missing_since > _APPEAR_S:
                    yield Ended(False, "the supervisor died: nobody carries the order out any more")
                    return
                continue
            missing_since = time.monotonic()
            if status.state is not RolloutState.RUNNING:
                yield Ended(status.state is RolloutState.DONE, status.words)
                return
            yield Progress(status.words)
        yield Ended(False, "`up` ends")


def send(folder: Path, order: Order) -> Iterator[Answer]:
    """Give an order to the `up` of this folder: where it stands, again and again, and its end last.

    Raises RemoteFault when that `up` does not take it or falls silent.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SILENCE_S)
        try:
            connection.connect(str(folder / NAME))
        except FileNotFoundError:
            raise RemoteFault("`up` takes no orders now: it starts or ends") from None
        except OSError as error:
            raise RemoteFault(f"`up` takes no orders: {error}") from error
        try:
            connection.sendall(msgspec.json.encode(order) + b"\n")
            with connection.makefile("rb") as lines:
                while line := lines.readline(2 * MAX_LINE_BYTES):
                    answer: Any = msgspec.json.decode(line, type=Answer)
                    yield answer
                    if not isinstance(answer, Progress):
                        return
            raise RemoteFault("`up` went away before the order was carried out")
        except (OSError, msgspec.MsgspecError) as error:
            raise RemoteFault(f"`up` broke off: {error}") from error

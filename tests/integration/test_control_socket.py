"""The socket that takes orders: who may use it, what it refuses, and how an order is followed."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bootstrap.errors import RemoteFault
from cluster.control import MAX_CLIENTS, MAX_LINE_BYTES, NAME, ControlServer, send
from cluster.order_book import OrderStatus
from cluster.orders import Answer, DrainEngine, Ended, Order, Progress, Refused
from cluster.rollout import RolloutState
from tests.support.waiting import wait_for

ORDER = DrainEngine("decode-0")


class Book:
    """Orders that were given, and what is said of them."""

    def __init__(self) -> None:
        self.given: list[Order] = []
        self.statuses: tuple[OrderStatus, ...] = ()
        self.refusal = ""

    def give(self, order: Order) -> int | str:
        if self.refusal:
            return self.refusal
        self.given.append(order)
        return len(self.given)

    def tell(self, state: RolloutState, words: str) -> None:
        self.statuses = (OrderStatus(1, state, words),)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pds-", dir="/tmp") as name:  # socket paths are short
        yield Path(name)


@pytest.fixture
def book(folder: Path) -> Iterator[Book]:
    made = Book()
    server = ControlServer(folder, made.give, lambda: made.statuses)
    server.start()
    yield made
    server.stop()
    assert not (folder / NAME).exists()


def ask(folder: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(folder / NAME))
        client.sendall(line)
        with client.makefile("rb") as lines:
            return lines.readline()


def test_only_its_user_may_enter(folder: Path, book: Book) -> None:
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


def test_an_order_is_followed_to_its_end(folder: Path, book: Book) -> None:
    answers = send(folder, ORDER)
    book.tell(RolloutState.RUNNING, "decode-0: draining")
    assert next(answers) == Progress("decode-0: draining")
    assert book.given == [ORDER]
    book.tell(RolloutState.DONE, "decode-0: drained")
    rest = [answer for answer in answers if not isinstance(answer, Progress)]
    assert rest == [Ended(True, "decode-0: drained")]


def test_what_cannot_be_carried_out_is_refused_with_its_reason(folder: Path, book: Book) -> None:
    book.refusal = "worker='decode-0': allowed are none"
    assert list(send(folder, ORDER)) == [Refused(book.refusal)]


def test_an_order_that_failed_says_so(folder: Path, book: Book) -> None:
    book.tell(RolloutState.FAILED, "decode-0: does not start")
    assert list(send(folder, ORDER)) == [Ended(False, "decode-0: does not start")]


@pytest.mark.parametrize(
    "line", [b"\n", b"stop\n", b'{"type":"stop"}\n', b"[" * MAX_LINE_BYTES, b"\xff\xfe\n"]
)
def test_what_is_no_order_is_refused_and_the_socket_lives(
    folder: Path, book: Book, line: bytes
) -> None:
    answer = msgspec.json.decode(ask(folder, line), type=Answer)  # type: ignore[call-overload]
    assert isinstance(answer, Refused)
    assert "no order" in answer.why
    assert book.given == []
    book.tell(RolloutState.DONE, "done")
    assert list(send(folder, ORDER)) == [Ended(True, "done")]


def test_clients_beyond_the_limit_are_turned_away_and_places_come_free(
    folder: Path, book: Book
) -> None:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(MAX_CLIENTS)]
    for client in idle:
        client.connect(str(folder / NAME))
    with pytest.raises(RemoteFault):
        list(send(folder, ORDER))
    for client in idle:
        client.close()
    book.tell(RolloutState.DONE, "done")

    def served() -> bool:
        try:
            return list(send(folder, ORDER)) == [Ended(True, "done")] or len(book.given) > 1
        except RemoteFault:
            return False

    wait_for(served, what="a free place")


def test_nobody_there_takes_no_orders(folder: Path) -> None:
    with pytest.raises(RemoteFault, match="takes no orders now: it starts or ends"):
        list(send(folder, ORDER))

"""Mailboxes over real sockets: order, losses, stops, secrets."""

import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bootstrap import mailbox as mailbox_module
from bootstrap import outbox, sockets
from bootstrap.codec import MAX_FRAME_BYTES
from bootstrap.errors import ConfigError, LocalMisuse
from bootstrap.identity import Peer, WorkerRef, new_room
from bootstrap.inbox import Inbox
from bootstrap.mailbox import Mailbox
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    LegFailed,
    Message,
    PrefillStarted,
    RoomTokens,
    TokenBatch,
)
from bootstrap.security import Security
from tests.support.bootstrap_facts import make_ref
from tests.support.waiting import wait_for

SECURITY = Security.from_secret(b"0123456789abcdef")
OTHER_SECURITY = Security.from_secret(b"fedcba9876543210")


class Desk:
    """A mailbox and what came into it."""

    def __init__(
        self, worker_id: str, security: Security | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.letters: list[tuple[Peer, Message]] = []
        self.mailbox = Mailbox(make_ref(worker_id), host, self.take, security)
        self.peer = self.mailbox.peer
        self.mailbox.start()

    def take(self, sender: Peer, message: Message) -> None:
        """What the mailbox calls; a room of zeros is poison."""
        if isinstance(message, PrefillStarted) and message.room == bytes(16):
            raise RuntimeError("poison")
        self.letters.append((sender, message))

    @property
    def bodies(self) -> list[Message]:
        """The messages alone."""
        return [message for _, message in self.letters]


class Desks:
    """Opens desks and stops them all at the end."""

    def __init__(self) -> None:
        self.open: list[Desk] = []

    def __call__(
        self, worker_id: str, security: Security | None = None, host: str = "127.0.0.1"
    ) -> Desk:
        self.open.append(Desk(worker_id, security, host))
        return self.open[-1]


@pytest.fixture
def desks() -> Iterator[Desks]:
    opened = Desks()
    yield opened
    for desk in opened.open:
        desk.mailbox.stop()


def letter(number: int) -> LegFailed:
    """A message that differs from others."""
    return LegFailed(number.to_bytes(16, "big"), FailureReason.INTERNAL, str(number))


@pytest.mark.parametrize("security", [None, SECURITY], ids=["plain", "curve"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_letters_arrive_in_order_with_their_sender(
    desks: Desks, security: Security | None, host: str
) -> None:
    one, two = desks("one", security, host), desks("two", security, host)
    sent: list[Message] = [letter(number) for number in range(1000)]
    for message in sent:
        one.mailbox.post(two.peer, message)
    wait_for(lambda: len(two.letters) == 1000)
    assert two.bodies == sent
    assert {sender for sender, _ in two.letters} == {one.peer}
    two.mailbox.post(one.peer, letter(1))
    wait_for(lambda: one.letters == [(two.peer, letter(1))])


def test_posts_from_many_threads_all_arrive(desks: Desks) -> None:
    one, two = desks("one"), desks("two")

    def post(start: int) -> None:
        for number in range(start, start + 100):
            one.mailbox.post(two.peer, letter(number))

    threads = [threading.Thread(target=post, args=(100 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(two.letters) == 800)
    for thread in threads:
        thread.join()
    assert {m.detail for m in two.bodies if isinstance(m, LegFailed)} == {
        str(number) for number in range(800)
    }


def test_a_mailbox_may_write_to_itself(desks: Desks) -> None:
    one = desks("one")
    one.mailbox.post(one.peer, letter(1))
    wait_for(lambda: one.letters == [(one.peer, letter(1))])


def test_letters_wait_for_a_receiver_that_has_not_started() -> None:
    letters: list[Message] = []
    late = Mailbox(make_ref("late"), "127.0.0.1", lambda _, message: letters.append(message))
    one = Desk("one")
    one.mailbox.post(late.peer, letter(1))
    wait_for(lambda: one.mailbox.counters()["posted"])
    late.start()
    wait_for(lambda: letters == [letter(1)])
    one.mailbox.stop()
    late.stop()


def test_letters_for_an_earlier_incarnation_are_counted_and_dropped(desks: Desks) -> None:
    one, two = desks("one"), desks("two")
    earlier = Peer(WorkerRef("two", "0" * 16), two.peer.endpoint)
    one.mailbox.post(earlier, letter(1))
    one.mailbox.post(two.peer, letter(2))
    wait_for(lambda: two.bodies == [letter(2)])
    assert two.mailbox.counters()["misaddressed"] == 1


def test_an_error_in_the_handler_is_logged_and_costs_one_letter(
    desks: Desks, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = desks("one"), desks("two")
    one.mailbox.post(two.peer, PrefillStarted(bytes(16)))
    one.mailbox.post(two.peer, letter(1))
    wait_for(lambda: two.bodies == [letter(1)])
    assert two.mailbox.counters()["handler_errors"] == 1
    assert "RuntimeError: poison" in caplog.text


def test_stop_sends_last_letters_and_returns_though_others_never_leave(desks: Desks) -> None:
    one, two = desks("one"), desks("two")
    with socket.socket() as deaf:  # a bound port where nobody listens refuses connections
        deaf.bind(("127.0.0.1", 0))
        nowhere = Peer(make_ref("gone"), f"tcp://127.0.0.1:{deaf.getsockname()[1]}")
        one.mailbox.post(nowhere, letter(0))
        last = AbortRoom(new_room(), FailureReason.CANCELLED)
        one.mailbox.post(two.peer, last)
        one.mailbox.stop()
    wait_for(lambda: two.bodies == [last])
    assert not any(t.name.startswith("mailbox-one") for t in threading.enumerate())
    one.mailbox.post(two.peer, letter(1))
    assert one.mailbox.counters()["dropped"] == 1
    one.mailbox.stop()


def test_stop_without_start_and_no_start_after_stop() -> None:
    mailbox = Mailbox(make_ref("idle"), "127.0.0.1", lambda sender, message: None)
    mailbox.stop()
    mailbox.stop()
    with pytest.raises(LocalMisuse, match="does not start again"):
        mailbox.start()


def test_the_handler_itself_may_stop_its_mailbox() -> None:
    stopped: list[Mailbox] = []

    def stop(sender: Peer, message: Message) -> None:
        mailbox.stop()
        stopped.append(mailbox)

    mailbox = Mailbox(make_ref("one"), "127.0.0.1", stop)
    mailbox.start()
    mailbox.post(mailbox.peer, letter(1))
    wait_for(lambda: stopped)
    wait_for(lambda: not any(t.name.startswith("mailbox-one") for t in threading.enumerate()))


def test_a_full_queue_drops_and_counts_and_others_are_served(
    desks: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "QUEUE_MESSAGES", 10)
    one, two = desks("one"), desks("two")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        nowhere = Peer(make_ref("gone"), f"tcp://127.0.0.1:{deaf.getsockname()[1]}")
        for number in range(50):
            one.mailbox.post(nowhere, letter(number))
        wait_for(lambda: one.mailbox.counters()["dropped"] == 40)
        one.mailbox.forget(nowhere.endpoint)
        one.mailbox.post(two.peer, letter(1))
        wait_for(lambda: two.bodies == [letter(1)])


def test_forgotten_peers_are_reached_again(desks: Desks) -> None:
    one, two = desks("one"), desks("two")
    one.mailbox.post(two.peer, letter(1))
    wait_for(lambda: two.bodies == [letter(1)])
    one.mailbox.forget(two.peer.endpoint)
    one.mailbox.post(two.peer, letter(2))
    wait_for(lambda: two.bodies == [letter(1), letter(2)])


def test_more_peers_than_sockets_and_idle_sockets(
    desks: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_OUTLETS", 2)
    monkeypatch.setattr(mailbox_module, "_POLL_MS", 20)
    one = desks("one")
    others = [desks(f"other{i}") for i in range(4)]
    for number, other in enumerate(others * 3):
        one.mailbox.post(other.peer, letter(number))
        wait_for(lambda: letter(number) in other.bodies)  # noqa: B023 - called at once
    # Not before: a socket that closes as idle drops a letter that waits for its handshake.
    monkeypatch.setattr(outbox, "IDLE_S", 0.05)
    wait_for(lambda: not one.mailbox._outbox._outlets, what="idle sockets closed")


def test_a_letter_over_the_limit_is_refused_by_its_sender(desks: Desks) -> None:
    one, two = desks("one"), desks("two")
    tokens = tuple([1 << 30] * (1 << 20))
    batch = TokenBatch(tuple(RoomTokens(new_room(), 0, tokens) for _ in range(4)))
    one.mailbox.post(two.peer, batch)
    one.mailbox.post(two.peer, letter(1))
    wait_for(lambda: two.bodies == [letter(1)])
    assert one.mailbox.counters()["oversized"] == 1


def test_a_large_letter_within_the_limit_arrives(desks: Desks) -> None:
    one, two = desks("one"), desks("two")
    batch = TokenBatch((RoomTokens(new_room(), 0, tuple([1 << 30] * (1 << 20))),))
    one.mailbox.post(two.peer, batch)
    wait_for(lambda: two.bodies == [batch])
    assert MAX_FRAME_BYTES > 5 << 20


def test_an_endpoint_that_is_no_address_is_counted(desks: Desks) -> None:
    one, two = desks("one"), desks("two")
    for endpoint in ("tcp://", "tcp://127.0.0.1"):
        one.mailbox.post(Peer(make_ref("odd"), endpoint), letter(0))
    one.mailbox.post(two.peer, letter(1))
    wait_for(lambda: two.bodies == [letter(1)])
    assert one.mailbox.counters()["unreachable"] == 2


def test_hosts_that_peers_could_not_reach_are_refused() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "no such host"):
        with pytest.raises(ConfigError, match="bind_host"):
            Mailbox(make_ref("one"), host, lambda sender, message: None)
    with pytest.raises(ConfigError, match="bind_host"):  # not an address of this host
        Mailbox(make_ref("one"), "192.0.2.1", lambda sender, message: None, SECURITY)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [(SECURITY, OTHER_SECURITY), (SECURITY, None), (None, SECURITY)],
    ids=["wrong-secret", "no-secret", "unneeded-secret"],
)
def test_without_the_same_secret_nothing_arrives(
    desks: Desks,
    inside: Security | None,
    outside: Security | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    member, other = desks("member", inside), desks("other", inside)
    stranger = desks("stranger", outside)
    stranger.mailbox.post(member.peer, letter(666))
    wait_for(lambda: member.mailbox.counters()["handshakes_failed"])
    other.mailbox.post(member.peer, letter(1))
    wait_for(lambda: member.bodies == [letter(1)])
    assert member.mailbox.counters()["received"] == 1
    assert "wrong or missing cluster secret" in caplog.text


def test_peers_that_come_back_at_the_same_address_are_reached(desks: Desks) -> None:
    one, first = desks("one"), desks("two")
    one.mailbox.post(first.peer, letter(1))
    wait_for(lambda: first.bodies == [letter(1)])
    first.mailbox.stop()
    port = int(first.peer.endpoint.rpartition(":")[2])
    got: list[Message] = []
    ref = make_ref("two")
    second = _mailbox_at(port, ref, got)
    try:
        give_up_at = time.monotonic() + 20
        number = 2
        while not got and time.monotonic() < give_up_at:  # the lost connection may cost letters
            one.mailbox.post(Peer(ref, first.peer.endpoint), letter(number))
            number += 1
            time.sleep(0.05)
        assert got
    finally:
        second.stop()


def _mailbox_at(port: int, ref: WorkerRef, got: list[Message]) -> Mailbox:
    """A mailbox on a port of our choice, as an address that the system hands out again."""
    with pytest.MonkeyPatch.context() as patch:
        bind = Inbox.bind
        patch.setattr(Inbox, "bind", lambda inbox, _: bind(inbox, str(port)))
        mailbox = Mailbox(ref, "127.0.0.1", lambda _, message: got.append(message))
    mailbox.start()
    return mailbox

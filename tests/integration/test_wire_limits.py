"""What strangers cost who do not have the secret, what replays do, and what one connection may send."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from bootstrap import inbox, registry
from bootstrap.client import BootstrapClient, Registration
from bootstrap.codec import encode
from bootstrap.identity import Peer
from bootstrap.mailbox import Mailbox
from bootstrap.membership import WorkerLoad
from bootstrap.messages import Envelope, Message, PrefillStarted
from bootstrap.security import Security
from bootstrap.service import BootstrapService
from tests.support.bootstrap_facts import make_info, make_peer, make_ref
from tests.support.waiting import wait_for

SECURITY = Security.from_secret(b"0123456789abcdef")
NUM_STRANGERS = 500
MAX_GROWTH_BYTES = 64 << 20

# Opens connections, says what it is told to, and holds them until its input ends.
STRANGERS = """
import random, socket, sys
host, port, count, junk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
held = [socket.create_connection((host, port)) for _ in range(count)]
for connection in held:
    if junk:
        connection.sendall(random.randbytes(junk))
print("open", flush=True)
sys.stdin.read()
"""


def address(peer: Peer) -> tuple[str, int]:
    """Host and port of a mailbox."""
    host, _, port = peer.endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@contextmanager
def strangers(peer: Peer, junk_bytes: int) -> Iterator[None]:
    """Connections of another process that never finish a handshake."""
    host, port = address(peer)
    arguments = [host, str(port), str(NUM_STRANGERS), str(junk_bytes)]
    process = subprocess.Popen(
        [sys.executable, "-c", STRANGERS, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        try:
            yield
        finally:
            process.stdin.close()


class Post:
    """A secured mailbox, and letters of a friend to it."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.mailbox = Mailbox(
            make_ref("target"), "127.0.0.1", lambda _, m: self.got.append(m), SECURITY
        )
        self.friend = Mailbox(make_ref("friend"), "127.0.0.1", lambda _, m: None, SECURITY)
        self._num_sent = 0

    def __enter__(self) -> "Post":
        self.mailbox.start()
        self.friend.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.friend.stop()
        self.mailbox.stop()

    def deliver(self, *, to: Peer | None = None) -> None:
        """The friend writes and the letter arrives."""
        self._num_sent += 1
        self.friend.post(
            to or self.mailbox.peer, PrefillStarted(self._num_sent.to_bytes(16, "big"))
        )
        wait_for(lambda: len(self.got) == self._num_sent, what="a letter")


def num_fds() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("junk_bytes", [0, 4096], ids=["silent", "garbage"])
def test_strangers_get_nothing_cost_nothing_and_are_cut_off(junk_bytes: int) -> None:
    with Post() as post:
        post.deliver()
        fds, memory = num_fds(), resident_bytes()
        with strangers(post.mailbox.peer, junk_bytes):
            for _ in range(20):
                post.deliver()
            assert resident_bytes() - memory < MAX_GROWTH_BYTES
            wait_for(lambda: num_fds() < fds + 20, what="strangers cut off though they stay")
            post.deliver()
        counters = post.mailbox.counters()
        assert counters["received"] == 22
        assert counters["undecodable"] == counters["misaddressed"] == 0


class Tap:
    """A relay that keeps what the first connection through it said towards the target."""

    def __init__(self, target: Peer) -> None:
        self._target = address(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.said: list[bytes] = []
        threading.Thread(target=self._relay, daemon=True).start()

    def close(self) -> None:
        """End the relay."""
        for each in (self._near, self._far):
            each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _relay(self) -> None:
        self._near, _ = self._listener.accept()
        self._far = socket.create_connection(self._target)
        back = threading.Thread(target=_copy, args=(self._far, self._near), daemon=True)
        back.start()
        _copy(self._near, self._far, self.said.append)
        back.join()
        self._near.close()
        self._far.close()


def _copy(
    source: socket.socket, sink: socket.socket, keep: Callable[[bytes], None] | None = None
) -> None:
    try:
        while data := source.recv(65536):
            if keep is not None:
                keep(data)
            sink.sendall(data)
    except OSError:
        return


def replay(said: list[bytes], target: Peer) -> None:
    """Say it all again, each piece once the target had time to answer the one before."""
    with socket.create_connection(address(target)) as connection:
        connection.settimeout(0.1)
        for piece in said:
            try:
                connection.sendall(piece)
                connection.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                return


def test_what_was_captured_says_nothing_on_another_connection() -> None:
    with Post() as post:
        tap = Tap(post.mailbox.peer)
        for _ in range(3):
            post.deliver(to=Peer(post.mailbox.peer.ref, tap.endpoint))
        assert sum(map(len, tap.said)) > 500
        failed = post.mailbox.counters()["handshakes_failed"]
        for _ in range(3):
            replay(tap.said, post.mailbox.peer)
        wait_for(lambda: post.mailbox.counters()["handshakes_failed"] >= failed + 3)
        assert post.mailbox.counters()["received"] == len(post.got) == 3
        post.deliver()
        tap.close()


def test_a_connection_of_garbage_is_muted_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "MAX_MALFORMED", 5)
    with Post() as post, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        SECURITY.secure_client(dealer)
        dealer.connect(post.mailbox.peer.endpoint)
        letter = encode(
            Envelope(post.friend.peer, post.mailbox.peer.ref, PrefillStarted(b"x" * 16))
        )
        for frame in (*[b"junk"] * 4, letter, b"junk", letter, b"junk"):
            dealer.send(frame)
        wait_for(lambda: post.mailbox.counters()["muted"] == 2)
        counters = post.mailbox.counters()
        assert (counters["undecodable"], counters["received"]) == (5, 1)
        post.got.clear()
        post.deliver()


def test_suspects_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_SUSPECTS", 3)
    with Post() as post:
        for number in range(6):
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                SECURITY.secure_client(dealer)
                dealer.connect(post.mailbox.peer.endpoint)
                dealer.send(b"junk")
                wait_for(lambda n=number: post.mailbox.counters()["undecodable"] == n + 1)
        post.deliver()  # by then what it does about the last junk is done
        assert len(post.mailbox._inbox._malformed) == 3


def test_members_and_subscribers_beyond_the_limits_are_refused_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "MAX_MEMBERS", 0)
    monkeypatch.setattr(registry, "MAX_SUBSCRIBERS", 0)
    service = BootstrapService("tcp://127.0.0.1:0", security=SECURITY)
    service.start()
    peer = make_peer(make_ref("one-too-many"))
    registration = Registration(make_info(peer), WorkerLoad)
    client = BootstrapClient(service.endpoint, peer, SECURITY, lambda e: None, registration)
    client.start()
    wait_for(lambda: service.counters()["refused"] >= 2)
    assert client.members() == ()
    client.stop(unregister=False)
    service.stop()

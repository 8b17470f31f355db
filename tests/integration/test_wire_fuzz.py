"""Whatever bytes arrive: they are counted, dropped, and the next valid message works."""

import random
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest
import zmq

from bootstrap.client import BootstrapClient, Registration
from bootstrap.codec import MAX_FRAME_BYTES, WIRE_VERSION, encode
from bootstrap.mailbox import Mailbox
from bootstrap.membership import Register, Subscribe, WorkerLoad
from bootstrap.messages import Envelope, Message, PrefillStarted
from bootstrap.security import Security
from bootstrap.service import BootstrapService
from bootstrap.session import DEFAULT_LEASE_S
from tests.support.bootstrap_facts import make_info, make_peer, make_ref
from tests.support.waiting import wait_for

SECURITY = Security.from_secret(b"0123456789abcdef")
VALID = encode(
    Envelope(make_peer(make_ref("fuzz", 1)), make_ref("somebody", 1), PrefillStarted(bytes(16)))
)
PACK = msgspec.msgpack.encode


@dataclass(frozen=True)
class Target:
    """Something that listens, its counters, and a proof that it still serves."""

    endpoint: str
    counters: Callable[[], dict[str, int]]
    serves: Callable[[], None]


def mailbox_target(security: Security | None) -> Iterator[Target]:
    """A mailbox; serving is taking a letter of another."""
    got: list[Message] = []
    mailbox = Mailbox(make_ref("target"), "127.0.0.1", lambda _, m: got.append(m), security)
    mailbox.start()

    def serves() -> None:
        friend = Mailbox(make_ref("friend"), "127.0.0.1", lambda sender, message: None, security)
        friend.start()
        letter = PrefillStarted(random.randbytes(16))
        friend.post(mailbox.peer, letter)
        wait_for(lambda: letter in got)
        friend.stop()

    yield Target(mailbox.peer.endpoint, mailbox.counters, serves)
    mailbox.stop()


def service_target(security: Security | None, lease_s: float = DEFAULT_LEASE_S) -> Iterator[Target]:
    """A bootstrap service; serving is taking in a member and letting it go."""
    service = BootstrapService("tcp://127.0.0.1:0", lease_s, security)
    service.start()

    def serves() -> None:
        peer = make_peer(make_ref("friend"))
        registration = Registration(make_info(peer), WorkerLoad)
        client = BootstrapClient(service.endpoint, peer, security, lambda e: None, registration)
        client.start()
        client.wait_ready(20.0)
        client.stop()

    yield Target(service.endpoint, service.counters, serves)
    service.stop()


@pytest.fixture(params=[mailbox_target, service_target], ids=["mailbox", "service"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    yield from request.param(None)


@pytest.fixture(params=[mailbox_target, service_target], ids=["mailbox", "service"])
def secured_target(request: pytest.FixtureRequest) -> Iterator[Target]:
    yield from request.param(SECURITY)


@pytest.fixture
def dealer() -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as opened:
        opened.linger = 0
        yield opened


def send_all(dealer: "zmq.Socket[bytes]", target: Target, messages: list[list[bytes]]) -> None:
    """Send multipart messages, then see all of them counted and the target serving."""
    dealer.connect(target.endpoint)
    for parts in messages:
        dealer.send_multipart(parts)
    wait_for(lambda: target.counters()["undecodable"] == len(messages))
    target.serves()


def test_random_bytes(target: Target, dealer: "zmq.Socket[bytes]") -> None:
    draw = random.Random(1)
    junk = [draw.randbytes(draw.randrange(1, 400)) for _ in range(200)]
    versioned = [bytes([WIRE_VERSION]) + each for each in junk]
    send_all(dealer, target, [[each] for each in junk + versioned])


def test_truncated_frames(target: Target, dealer: "zmq.Socket[bytes]") -> None:
    send_all(dealer, target, [[VALID[:at]] for at in range(len(VALID))])


def test_wrong_version_bytes(target: Target, dealer: "zmq.Socket[bytes]") -> None:
    versions = [v for v in range(256) if v != WIRE_VERSION]
    send_all(dealer, target, [[bytes([v]) + VALID[1:]] for v in versions])


def test_wrong_types(target: Target, dealer: "zmq.Socket[bytes]") -> None:
    head = {"sender": make_peer(make_ref("fuzz", 1)), "recipient": None}
    bodies: list[object] = [
        None,
        7,
        [],
        {},
        {"t": "Nothing"},
        {"t": 3},
        {"t": "Heartbeat", "load": []},
        {"t": "Heartbeat", "load": {"num_queued": -1}},
        {"t": "Heartbeat", "load": {"counters": {"x": "y"}}},
        {"t": "Register", "info": {"peer": head["sender"]}},
        {"t": "Snapshot", "service": None, "version": 0, "members": []},
        {"t": "PrefillStarted", "room": b"short"},
        {"t": "PrefillStarted", "room": "text that is long"},
    ]
    frames = [PACK({**head, "body": body}) for body in bodies]
    frames += [PACK({"sender": {}, "recipient": None, "body": {"t": "Subscribe"}}), PACK([1, 2])]
    frames += [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"]
    send_all(dealer, target, [[bytes([WIRE_VERSION]) + frame] for frame in frames])


def test_wrong_numbers_of_parts(target: Target, dealer: "zmq.Socket[bytes]") -> None:
    send_all(dealer, target, [[b"", VALID], [VALID, VALID], [b""], [b""] * 50])


def test_oversized_frames_cost_their_sender_the_connection(
    target: Target, dealer: "zmq.Socket[bytes]"
) -> None:
    before = target.counters()
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    dealer.connect(target.endpoint)
    dealer.send(b"\x01" * (MAX_FRAME_BYTES + 1))
    wait_for(lambda: monitor.poll(0), what="disconnection")
    dealer.disable_monitor()
    monitor.close()
    target.serves()
    assert target.counters()["undecodable"] == before["undecodable"]


def test_the_largest_frame_is_judged_by_its_content(
    target: Target, dealer: "zmq.Socket[bytes]"
) -> None:
    send_all(dealer, target, [[b"\x01" * MAX_FRAME_BYTES]])


def test_messages_for_others(target: Target, dealer: "zmq.Socket[bytes]") -> None:
    dealer.connect(target.endpoint)
    for _ in range(10):
        dealer.send(VALID)
    wait_for(lambda: target.counters()["misaddressed"] == 10)
    target.serves()


def raw_connection(target: Target) -> socket.socket:
    """A TCP connection that knows nothing of ZMQ."""
    host, _, port = target.endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)))


ZMTP3_NULL = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
ZMTP1_FRAMES = b"\x01\x00" + struct.pack("B", len(VALID) % 255 + 1) + b"\0" + VALID


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        random.Random(2).randbytes(4096),
        b"\xff" * 4096,
        b"\0" * 4096,
        ZMTP3_NULL + b"\x04\x29\x05READY" + b"\xff" * 34,
        ZMTP3_NULL + b"\x06" + b"\xff" * 8,
        ZMTP1_FRAMES,
    ],
    ids=["http", "random", "ones", "zeros", "bad-ready", "huge-command", "zmtp1"],
)
@pytest.mark.parametrize("hang_up", [True, False], ids=["hang-up", "stay"])
def test_no_zmq_at_all(target: Target, junk: bytes, hang_up: bool) -> None:
    connections = [raw_connection(target) for _ in range(5)]
    for connection in connections:
        connection.sendall(junk)
        if hang_up:
            connection.close()
    target.serves()
    for connection in connections:
        connection.close()
    target.serves()


def test_without_the_secret_no_bytes_come_in(
    secured_target: Target, dealer: "zmq.Socket[bytes]"
) -> None:
    dealer.connect(secured_target.endpoint)
    for _ in range(10):
        dealer.send(VALID)
    wait_for(lambda: secured_target.counters()["handshakes_failed"])
    for junk in (ZMTP1_FRAMES, ZMTP3_NULL, random.Random(3).randbytes(4096)):
        with raw_connection(secured_target) as connection:
            connection.sendall(junk)
            secured_target.serves()
    counters = secured_target.counters()
    assert counters["undecodable"] == counters["misaddressed"] == 0


def test_with_the_secret_junk_is_still_only_counted(
    secured_target: Target, dealer: "zmq.Socket[bytes]"
) -> None:
    SECURITY.secure_client(dealer)
    send_all(dealer, secured_target, [[b"junk"], [VALID[:-1]]])


def test_a_client_key_of_another_pair_is_refused_though_it_knows_the_server_key(
    secured_target: Target, dealer: "zmq.Socket[bytes]"
) -> None:
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.curve_serverkey = SECURITY.public_key
    dealer.connect(secured_target.endpoint)
    dealer.send(VALID)
    wait_for(lambda: secured_target.counters()["handshakes_failed"])
    secured_target.serves()
    assert secured_target.counters()["misaddressed"] == 0


@pytest.mark.parametrize("forged", ["name", "messages"])
def test_contradictions_towards_the_service(dealer: "zmq.Socket[bytes]", forged: str) -> None:
    for target in service_target(None):
        me, other = make_peer(make_ref("fuzz", 1)), make_peer(make_ref("other", 1))
        dealer.connect(target.endpoint)
        bodies: list[Message] = [Register(make_info(other))]
        if forged == "messages":
            bodies = [PrefillStarted(bytes(16))]
        dealer.send(encode(Envelope(me, None, bodies[0])))
        wait_for(lambda t=target: t.counters()["contradictory"] == 1)  # type: ignore[misc]
        target.serves()


def test_answers_to_those_who_hang_up_are_counted() -> None:
    for target in service_target(None, lease_s=60.0):  # the subscription outlives its subscriber
        with zmq.Context() as context:
            gone = context.socket(zmq.DEALER)
            gone.connect(target.endpoint)
            gone.send(encode(Envelope(make_peer(make_ref("gone", 1)), None, Subscribe())))
            assert gone.poll(20_000)
            gone.close(linger=0)
        target.serves()  # its coming and going is pushed to the one that is gone
        wait_for(lambda t=target: t.counters()["undeliverable"])  # type: ignore[misc]
        target.serves()

"""The codec: what goes in comes out, and nothing but WireError comes of anything else."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.codec import MAX_FRAME_BYTES, decode, encode
from bootstrap.errors import WireError
from bootstrap.identity import Peer, Role, WorkerRef, new_room
from bootstrap.membership import (
    Heartbeat,
    LeaveReason,
    LoadReport,
    Member,
    Register,
    Snapshot,
    WorkerInfo,
    WorkerLoad,
    WorkerState,
)
from bootstrap.messages import (
    Envelope,
    FailureReason,
    LegFailed,
    LegProgress,
    Message,
    Ping,
    PrefillDispatch,
    PrefillStarted,
    RoomTokens,
    Stage,
    TokenBatch,
)
from bootstrap.registry import ENDED_PER_SNAPSHOT, LOADS_PER_REPORT
from bootstrap.sampling import FinishReason, SamplingParams
from bootstrap.snapshots import SnapshotParts, split
from tests.support.bootstrap_facts import make_info, make_peer, make_ref

ME, YOU = make_peer(make_ref("me", 1)), make_peer(make_ref("you", 2))
ROOM = new_room()
LOAD = WorkerLoad(WorkerState.DRAINING, 1, 2, 3, {"free": 4}, {"steps": 5})
BODIES: list[Message] = [
    PrefillStarted(ROOM),
    PrefillDispatch(
        ROOM, "r", 0, 1.5, ME, YOU, (1, 2, 3), SamplingParams(1, 2, stop_token_ids=(7,)), 1, (9,)
    ),
    TokenBatch((RoomTokens(ROOM, 3, (4, 5), FinishReason.STOP),)),
    LegFailed(ROOM, FailureReason.DEADLINE, "too late"),
    LegProgress({ROOM: Stage.QUEUED}),
    Ping(),
    Register(make_info(ME, blob=b"\0\xff"), 2.5, LOAD),
    Heartbeat(LOAD),
    Snapshot(YOU.ref, 7, (Member(make_info(ME), LOAD),), 1, 3),
    LoadReport(((ME.ref, LOAD),)),
]
FRAMES = [encode(Envelope(ME, YOU.ref, body)) for body in BODIES]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_messages_survive_the_wire(body: Message) -> None:
    envelope = Envelope(ME, YOU.ref, body)
    assert decode(encode(envelope)) == envelope
    assert decode(memoryview(encode(envelope))) == envelope


def only_wire_errors(frame: bytes) -> None:
    """Decode; another error than WireError fails the test."""
    try:
        envelope = decode(frame)
    except WireError:
        return
    assert isinstance(envelope, Envelope)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes(junk: bytes) -> None:
    only_wire_errors(junk)
    only_wire_errors(b"\x01" + junk)


@given(st.sampled_from(FRAMES), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_frames(frame: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(WireError):
        decode(frame[:at])
    junk = data.draw(st.binary(max_size=8))
    only_wire_errors(frame[:at] + junk + frame[at + data.draw(st.integers(0, 8)) :])


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats()
        | st.text(max_size=20)
        | st.binary(max_size=20)
        | st.sampled_from([type(body).__name__ for body in BODIES]),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["sender", "recipient", "body", "t", "room", "load", "info"]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
@settings(max_examples=300, deadline=None)
def test_wrong_types(value: object) -> None:
    only_wire_errors(b"\x01" + msgspec.msgpack.encode(value))


def body_frame(name: str, field: str, raw: bytes) -> bytes:
    """A frame whose message `name` has the MessagePack bytes `raw` as its one field."""
    head = msgspec.msgpack.encode({"sender": ME, "recipient": YOU.ref})
    pack = msgspec.msgpack.encode
    body = b"\x82" + pack("t") + pack(name) + pack(field) + raw
    return b"\x01\x83" + head[1:] + pack("body") + body


@pytest.mark.parametrize(
    "frame",
    [
        body_frame("TokenBatch", "rooms", b"\xdd\xff\xff\xff\xff"),
        body_frame("LegProgress", "stages", b"\xdf\xff\xff\xff\xff"),
        body_frame("HandoffRecord", "prompt_digest", b"\xc6\xff\xff\xff\xff"),
        body_frame("LegFailed", "detail", b"\xdb\xff\xff\xff\xff"),
        body_frame("PrefillStarted", "unknown", b"\xdd\xff\xff\xff\xff"),
        body_frame("PrefillStarted", "unknown", b"\x91" * (1 << 20)),
        body_frame("PrefillStarted", "unknown", b"\x81\xa1a" * (1 << 20)),
        b"\x01" + b"\x91" * (1 << 20),
        b"\x01" + b"\0" * MAX_FRAME_BYTES,
    ],
    ids=["array", "map", "bytes", "text", "skipped", "nested", "nested-map", "top", "oversized"],
)
def test_claims_of_size_and_depth_cost_nothing(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode(frame)


@pytest.mark.parametrize("not_a_number", [float("nan"), float("inf"), -1.0])
def test_numbers_out_of_bounds(not_a_number: float) -> None:
    with pytest.raises(WireError):
        decode(encode(Envelope(ME, YOU.ref, Register(make_info(ME), not_a_number))))


@pytest.mark.parametrize(
    "peer",
    [
        Peer(WorkerRef("a\n", "0" * 16), "tcp://h:1"),
        Peer(WorkerRef("a/b", "0" * 16), "tcp://h:1"),
        Peer(WorkerRef("a", "0" * 15 + "\n"), "tcp://h:1"),
        Peer(WorkerRef("a", "0" * 16), "tcp://h:1\n"),
        Peer(WorkerRef("a", "0" * 16), "tcp://h:1\0"),
        Peer(WorkerRef("a", "0" * 16), "ipc:///run/some.sock"),
        Peer(WorkerRef("a", "0" * 16), "inproc://zeromq.zap.01"),
    ],
)
def test_names_and_addresses_hold_nothing_odd(peer: Peer) -> None:
    with pytest.raises(WireError):
        decode(encode(Envelope(peer, YOU.ref, PrefillStarted(ROOM))))


def largest_member(blob_bytes: int = 0) -> Member:
    """A member with every text at its limit in the widest characters."""
    wide = "\U0001f600"
    peer = Peer(WorkerRef("w" * 64, "0" * 16), "tcp://" + "h" * 250)
    base = make_info(peer, Role.PREFILL, blob=bytes(blob_bytes))
    contract = msgspec.structs.replace(
        base.contract,
        model_digest=wide * 128,
        tokenizer_digest=wide * 128,
        dtype=wide * 128,
        rope=wide * 1024,
    )
    info = msgspec.structs.replace(base, contract=contract, model=wide * 1024, host=wide * 1024)
    return Member(info, largest_load())


def largest_load() -> WorkerLoad:
    """A load with every map at its limit."""
    most = (1 << 53) - 1
    pages = {f"{i:02}" + "\U0001f600" * 30: most for i in range(16)}
    counters = {f"{i:02}" + "\U0001f600" * 62: most for i in range(64)}
    return WorkerLoad(WorkerState.DRAINING, most, most, most, pages, counters)


def test_largest_snapshot_part_and_load_report_fit_a_frame() -> None:
    for blob_bytes in (0, 1 << 20):
        member = largest_member(blob_bytes)
        ended = ((WorkerRef("w" * 64, "0" * 16), LeaveReason.UNREGISTERED),) * ENDED_PER_SNAPSHOT
        part = split(Snapshot(ME.ref, 1, (member,) * 300, ended=ended))[0]
        frame = encode(Envelope(ME, YOU.ref, part))
        assert len(frame) <= MAX_FRAME_BYTES
        assert decode(frame).body == part
    loads = ((largest_member().info.peer.ref, largest_load()),) * LOADS_PER_REPORT
    assert len(encode(Envelope(ME, YOU.ref, LoadReport(loads)))) <= MAX_FRAME_BYTES


@given(st.lists(st.integers(0, 1 << 12), max_size=30))
@settings(max_examples=50, deadline=None)
def test_parts_come_together_again_in_any_order(sizes: list[int]) -> None:
    members: list[Member] = []
    for index, num_bytes in enumerate(sizes):
        info: WorkerInfo = make_info(make_peer(make_ref(f"w{index}", 1)), blob=bytes(num_bytes))
        members.append(Member(info, WorkerLoad()))
    whole = Snapshot(ME.ref, 1, tuple(members), ended=((YOU.ref, LeaveReason.EVICTED),))
    parts = split(whole, part_bytes=200 << 10)
    collected = SnapshotParts()
    results = [collected.add(part) for part in reversed(parts)]
    assert results == [None] * (len(parts) - 1) + [whole]

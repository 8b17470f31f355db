"""Load balancers as members: the registry, the directory, the session, and the name of each."""

import re

import pytest

from bootstrap import codec
from bootstrap.directory import BalancerJoined, Directory, Joined, Left
from bootstrap.identity import Peer, WorkerRef
from bootstrap.membership import (
    BalancerInfo,
    BalancerMember,
    Heartbeat,
    LeaveReason,
    LoadReport,
    Member,
    MemberJoined,
    MemberLeft,
    Register,
    Registered,
    Snapshot,
    Subscribe,
    WorkerInfo,
    WorkerLoad,
)
from bootstrap.messages import Envelope, Message
from bootstrap.registry import Registry, Send
from bootstrap.session import Session
from bootstrap.snapshots import split
from cluster.balancer.registration import MAX_NAME, own_ref, registration
from tests.support.bootstrap_facts import make_info, make_peer, make_ref

SERVICE, ENGINE = make_ref("bootstrap", 1), make_ref("p0", 1)
LIFE, NEXT_LIFE, OTHER = make_ref("lb-0", 1), make_ref("lb-0", 2), make_ref("lb-1", 1)
LEASE_S = 2.0
BUSY = WorkerLoad(num_running=3)


def info(ref: WorkerRef) -> BalancerInfo:
    """The registration of a balancer."""
    return BalancerInfo(make_peer(ref), "demo", "http://127.0.0.1:8000", "host", 7)


def registry_with(*refs: WorkerRef) -> Registry:
    """A registry to which an engine listens."""
    registry = Registry(SERVICE, LEASE_S)
    registry.register(Register(make_info(make_peer(ENGINE))), 0.0)
    registry.subscribe(ENGINE, Subscribe(loads=False), 0.0)
    for ref in refs:
        registry.register(Register(info(ref)), 0.0)
    return registry


def told(sends: list[Send], ref: WorkerRef) -> list[Message]:
    """What one member hears."""
    return [send.message for send in sends if send.to == ref]


def test_engines_hear_of_a_balancer_and_of_its_end() -> None:
    registry = registry_with()
    (joined,) = told(registry.register(Register(info(LIFE), load=BUSY), 0.0), ENGINE)
    assert joined == MemberJoined(2, BalancerMember(info(LIFE), BUSY))
    registry.subscribe(ENGINE, Subscribe(SERVICE, 2, loads=False), LEASE_S)
    registry.heartbeat(ENGINE, WorkerLoad(), LEASE_S)
    assert registry.tick(LEASE_S / 2) == []
    sends = registry.tick(LEASE_S)
    assert told(sends, ENGINE) == [MemberLeft(3, LIFE, LeaveReason.LEASE_EXPIRED)]
    registry.validate()


@pytest.mark.parametrize("reason", [LeaveReason.UNREGISTERED, LeaveReason.EVICTED])
def test_a_goodbye_and_a_death_that_was_seen(reason: LeaveReason) -> None:
    registry = registry_with(LIFE)
    end = registry.unregister if reason is LeaveReason.UNREGISTERED else registry.evict
    assert told(end(LIFE), ENGINE) == [MemberLeft(3, LIFE, reason)]


def test_a_restarted_balancer_replaces_its_former_life_and_no_other() -> None:
    registry = registry_with(LIFE, OTHER)
    left, joined = told(registry.register(Register(info(NEXT_LIFE)), 1.0), ENGINE)
    assert left == MemberLeft(4, LIFE, LeaveReason.REPLACED)
    assert joined == MemberJoined(5, BalancerMember(info(NEXT_LIFE), WorkerLoad()))
    assert {m.info.peer.ref for m in registry.members} == {ENGINE, NEXT_LIFE, OTHER}
    registry.validate()


def test_a_directory_tells_engines_from_balancers() -> None:
    directory = Directory()
    engine = Member(make_info(make_peer(ENGINE)), WorkerLoad())
    balancer = BalancerMember(info(LIFE), WorkerLoad())
    events = directory.apply(SERVICE, Snapshot(SERVICE, 2, (engine, balancer)), 0.0)
    assert events == [Joined(engine), BalancerJoined(balancer)]
    directory.apply(SERVICE, LoadReport(((LIFE, BUSY), (ENGINE, BUSY))), 0.0)
    assert directory.members == (Member(engine.info, BUSY),)
    assert directory.balancers == (BalancerMember(balancer.info, BUSY),)
    left = MemberLeft(3, LIFE, LeaveReason.LEASE_EXPIRED)
    assert directory.apply(SERVICE, left, 0.0) == [Left(make_peer(LIFE), LeaveReason.LEASE_EXPIRED)]
    assert directory.balancers == ()
    directory.validate()


def test_a_balancer_registers_and_hears_loads_and_an_engine_does_not() -> None:
    session = Session(info(LIFE), 0.0)
    assert session.beat(BUSY, 1.0) == [Register(info(LIFE), 1.0, BUSY), Subscribe()]
    session.receive(SERVICE, Registered(LEASE_S), 1.0)
    assert session.beat(BUSY, 1.5) == [Heartbeat(BUSY), Subscribe()]
    engine = Session(make_info(make_peer(ENGINE)), 0.0)
    assert Subscribe(loads=False) in engine.beat(BUSY, 1.0)


def test_both_kinds_cross_the_wire_and_fill_parts() -> None:
    big = Member(make_info(make_peer(ENGINE), blob=bytes(1 << 20)), WorkerLoad())
    balancers = tuple(BalancerMember(info(make_ref(f"lb-{n}", n)), BUSY) for n in range(40))
    parts = split(Snapshot(SERVICE, 1, (big, *balancers)), part_bytes=2 << 20)
    assert len(parts) > 1
    assert tuple(m for part in parts for m in part.members) == (big, *balancers)
    for message in (*parts, Register(info(LIFE)), Register(make_info(make_peer(ENGINE)))):
        envelope = Envelope(make_peer(LIFE), None, message)
        assert codec.decode(codec.encode(envelope)) == envelope


def test_a_name_is_one_balancers_alone_and_outlives_a_restart() -> None:
    one, again = (own_ref("10.0.0.1", "http://0.0.0.0:8000") for _ in range(2))
    assert one.worker_id == again.worker_id == "balancer-10.0.0.1-8000"
    assert one.incarnation != again.incarnation
    long = "very-long-host-name." * 9
    others = {
        own_ref("10.0.0.1", "http://0.0.0.0:8001").worker_id,
        own_ref("10.0.0.2", "http://0.0.0.0:8000").worker_id,
        own_ref("[fd00::1]", "http://[::]:8000").worker_id,
        own_ref(f"{long}a", "http://h:8000").worker_id,
        own_ref(f"{long}b", "http://h:8000").worker_id,
    }
    assert len(others | {one.worker_id}) == 6
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in others)
    assert max(map(len, others)) == MAX_NAME


def test_a_registration_says_where_clients_connect() -> None:
    peer = Peer(LIFE, "tcp://127.0.0.1:9")
    made = registration(peer, "demo", "http://127.0.0.1:8000", WorkerLoad)
    assert isinstance(made.info, BalancerInfo)
    assert not isinstance(made.info, WorkerInfo)
    assert (made.info.peer, made.info.url) == (peer, "http://127.0.0.1:8000")

"""The registry: who is a member, decided from events and a clock that tests move."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap import registry as registry_module
from bootstrap.identity import WorkerRef
from bootstrap.membership import (
    Ended,
    LeaveReason,
    LoadReport,
    MemberJoined,
    MemberLeft,
    Register,
    RegisterAgain,
    Registered,
    Snapshot,
    Subscribe,
    Subscribed,
    WorkerLoad,
    WorkerState,
)
from bootstrap.messages import Message
from bootstrap.registry import Registry, Send
from tests.support.bootstrap_facts import make_info, make_peer, make_ref

LEASE_S = 2.0
LISTENER = make_ref("listener", 99)
LOAD = WorkerLoad()


def make_registry() -> Registry:
    """A registry with one subscriber."""
    registry = Registry(make_ref("bootstrap", 1), LEASE_S)
    registry.subscribe(LISTENER, Subscribe(), 0.0)
    return registry


def join(registry: Registry, ref: WorkerRef, now: float = 0.0, age_s: float = 0.0) -> list[Message]:
    """Register `ref`; what was sent."""
    return bodies(registry.register(Register(make_info(make_peer(ref)), age_s), now))


def bodies(sends: list[Send]) -> list[Message]:
    """The messages without their recipients."""
    return [send.message for send in sends]


def refs(registry: Registry) -> set[WorkerRef]:
    """Who is a member."""
    return {member.info.peer.ref for member in registry.members}


def run_idle(registry: Registry, since: float, until: float) -> list[Message]:
    """Tick every quarter lease as a service does, with its subscriber kept."""
    sends = []
    now = since
    while now < until:
        now += LEASE_S / 8
        registry.subscribe(LISTENER, Subscribe(registry.service, registry.version), now)
        sends += registry.tick(now)
    return bodies(sends)


def test_registration_answers_with_the_lease_and_tells_subscribers() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    sends = registry.register(Register(make_info(make_peer(ref))), 0.0)
    assert sends[0] == Send(ref, Registered(LEASE_S))
    assert [send.to for send in sends[1:]] == [LISTENER]
    assert isinstance(sends[1].message, MemberJoined)
    assert sends[1].message.version == 1


def test_repeated_registration_changes_nothing() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    join(registry, ref)
    assert join(registry, ref, 1.0) == [Registered(LEASE_S)]
    assert registry.version == 1


def test_registration_with_new_facts_is_told_again() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    join(registry, ref)
    moved = make_info(make_peer(ref, "tcp://127.0.0.1:2"))
    sent = bodies(registry.register(Register(moved), 1.0))
    assert [type(m) for m in sent] == [Registered, MemberJoined]
    assert registry.members[0].info == moved


def test_newer_incarnation_replaces_the_older_at_once() -> None:
    registry, old, new = make_registry(), make_ref("p0", 1), make_ref("p0", 2)
    join(registry, old)
    sent = join(registry, new, 0.5)
    assert sent[1] == MemberLeft(2, old, LeaveReason.REPLACED)
    assert isinstance(sent[2], MemberJoined)
    assert refs(registry) == {new}
    assert bodies(registry.heartbeat(old, LOAD, 0.6)) == [Ended(LeaveReason.REPLACED)]
    assert join(registry, old, 0.7) == [Ended(LeaveReason.REPLACED)]
    assert refs(registry) == {new}


def test_that_a_replaced_incarnation_died_is_told_once() -> None:
    registry, old, new = make_registry(), make_ref("p0", 1), make_ref("p0", 2)
    join(registry, old)
    join(registry, new, 0.5)
    assert bodies(registry.evict(old)) == [MemberLeft(4, old, LeaveReason.EVICTED)]
    assert registry.evict(old) == registry.unregister(old) == []
    assert refs(registry) == {new}


def test_older_process_never_replaces_a_younger_one_after_a_service_restart() -> None:
    registry, zombie, new = make_registry(), make_ref("p0", 1), make_ref("p0", 2)
    join(registry, new, 10.0, age_s=5.0)
    assert join(registry, zombie, 10.1, age_s=60.0) == [Ended(LeaveReason.REPLACED)]
    assert refs(registry) == {new}


def test_younger_process_replaces_an_older_one_that_registered_first() -> None:
    registry, zombie, new = make_registry(), make_ref("p0", 1), make_ref("p0", 2)
    join(registry, zombie, 10.0, age_s=60.0)
    join(registry, new, 10.1, age_s=5.0)
    assert refs(registry) == {new}


def test_lease_expires_and_the_silent_worker_may_come_back() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    join(registry, ref)
    sent = run_idle(registry, 0.0, LEASE_S)
    assert MemberLeft(2, ref, LeaveReason.LEASE_EXPIRED) in sent
    assert bodies(registry.heartbeat(ref, LOAD, 3.0)) == [RegisterAgain()]
    join(registry, ref, 3.0)
    assert refs(registry) == {ref}


def test_heartbeats_keep_a_lease() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    join(registry, ref)
    for beat in range(10):
        run_idle(registry, beat * LEASE_S / 2, (beat + 1) * LEASE_S / 2)
        registry.heartbeat(ref, LOAD, (beat + 1) * LEASE_S / 2)
    assert refs(registry) == {ref}


def test_no_lease_runs_while_the_service_itself_is_paused() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    join(registry, ref)
    registry.tick(0.1)
    registry.tick(100.0)
    assert refs(registry) == {ref}
    assert registry.num_subscribers == 1
    run_idle(registry, 100.0, 100.0 + LEASE_S)
    assert refs(registry) == set()


def test_eviction_of_a_member_and_of_one_whose_lease_ran_out() -> None:
    registry, member, silent = make_registry(), make_ref("p0", 1), make_ref("p1", 1)
    join(registry, member)
    join(registry, silent)
    assert bodies(registry.evict(member)) == [MemberLeft(3, member, LeaveReason.EVICTED)]
    run_idle(registry, 0.0, LEASE_S)
    assert bodies(registry.evict(silent)) == [MemberLeft(5, silent, LeaveReason.EVICTED)]
    assert registry.evict(silent) == []
    assert join(registry, silent, 9.0) == [Ended(LeaveReason.EVICTED)]


def test_goodbye_is_final() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    join(registry, ref)
    registry.unregister(ref)
    assert join(registry, ref, 1.0) == [Ended(LeaveReason.UNREGISTERED)]
    assert bodies(registry.subscribe(ref, Subscribe(), 1.0)) == [Ended(LeaveReason.UNREGISTERED)]


def test_snapshot_comes_only_when_the_subscriber_missed_something() -> None:
    registry = make_registry()
    join(registry, make_ref("p0", 1))
    assert bodies(registry.subscribe(LISTENER, Subscribe(registry.service, 1), 1.0)) == [
        Subscribed(1, LEASE_S)
    ]
    behind = bodies(registry.subscribe(LISTENER, Subscribe(registry.service, 0), 1.0))
    assert [type(m) for m in behind] == [Snapshot, Subscribed]
    other_life = Subscribe(make_ref("bootstrap", 7), 1)
    assert [type(m) for m in bodies(registry.subscribe(LISTENER, other_life, 1.0))] == [
        Snapshot,
        Subscribed,
    ]


def test_subscriptions_are_leases() -> None:
    registry = make_registry()
    for eighth in range(1, 9):
        registry.tick(eighth * LEASE_S / 8)
    assert registry.num_subscribers == 0
    assert not registry.knows(LISTENER)


def test_loads_are_reported_at_intervals_and_state_changes_at_once() -> None:
    registry, ref = make_registry(), make_ref("p0", 1)
    join(registry, ref)
    registry.tick(0.0)
    registry.subscribe(make_ref("engine", 1), Subscribe(loads=False), 0.0)
    busy = WorkerLoad(num_running=3)
    assert registry.heartbeat(ref, busy, 0.01) == []
    assert registry.tick(0.02) == []
    report = [LoadReport(((ref, busy),))]
    assert bodies(registry.tick(registry_module.REPORT_INTERVAL_S + 0.01)) == report
    assert registry.tick(1.0) == []
    draining = WorkerLoad(state=WorkerState.DRAINING)
    assert bodies(registry.heartbeat(ref, draining, 1.01)) == [LoadReport(((ref, draining),))]


def test_limits_refuse_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MAX_MEMBERS", 2)
    monkeypatch.setattr(registry_module, "MAX_SUBSCRIBERS", 1)
    monkeypatch.setattr(registry_module, "MAX_TOMBSTONES", 3)
    registry = make_registry()
    for number in range(3):
        join(registry, make_ref(f"p{number}", 1))
    assert len(registry.members) == 2
    assert registry.subscribe(make_ref("late", 1), Subscribe(), 0.0) == []
    assert registry.num_refused == 2
    for number in range(10):
        registry.evict(make_ref("gone", number))
    registry.validate()


WORKERS = st.builds(make_ref, st.sampled_from(["a", "b"]), st.integers(0, 3))
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["register", "heartbeat", "unregister", "evict", "subscribe", "tick"]),
        WORKERS,
        st.floats(0.0, LEASE_S / 4),
        st.floats(0.0, 5.0),
    ),
    max_size=60,
)


def happen(registry: Registry, kind: str, ref: WorkerRef, now: float, age_s: float) -> list[Send]:
    """One random event."""
    if kind == "register":
        return registry.register(Register(make_info(make_peer(ref)), age_s), now)
    if kind == "heartbeat":
        return registry.heartbeat(ref, LOAD, now)
    if kind == "subscribe":
        return registry.subscribe(ref, Subscribe(), now)
    if kind == "tick":
        return registry.tick(now)
    return registry.unregister(ref) if kind == "unregister" else registry.evict(ref)


@given(EVENTS)
@settings(max_examples=200, deadline=None)
def test_ended_incarnations_never_return_whatever_happens(
    events: list[tuple[str, WorkerRef, float, float]],
) -> None:
    registry, now, version = make_registry(), 0.0, 0
    ended: set[WorkerRef] = set()
    renewed_at: dict[WorkerRef, float] = {}
    for kind, ref, pause_s, age_s in events:
        now += pause_s
        registry.subscribe(LISTENER, Subscribe(registry.service, registry.version), now)
        before = refs(registry)
        sends = happen(registry, kind, ref, now, age_s)
        sends += registry.tick(now)
        registry.validate()
        if kind in ("register", "heartbeat"):
            renewed_at[ref] = now
        for send in sends:
            message = send.message
            if send.to == LISTENER and isinstance(message, MemberJoined | MemberLeft):
                assert message.version == version + 1
                version += 1
            if isinstance(message, MemberLeft) and message.reason.final:
                ended.add(message.ref)
            if isinstance(message, MemberLeft) and message.reason is LeaveReason.LEASE_EXPIRED:
                assert message.ref in before
                assert now - renewed_at[message.ref] >= LEASE_S
        assert version == registry.version
        assert not ended & refs(registry)
        assert len({r.worker_id for r in refs(registry)}) == len(refs(registry))
        assert all(now - renewed_at[r] < LEASE_S for r in refs(registry))

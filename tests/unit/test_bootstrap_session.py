"""The client's side of the talk with the service, without sockets or clocks."""

from bootstrap.directory import Fenced
from bootstrap.membership import (
    Ended,
    Heartbeat,
    LeaveReason,
    Member,
    MemberJoined,
    Register,
    RegisterAgain,
    Registered,
    Snapshot,
    Subscribe,
    Subscribed,
    WorkerLoad,
)
from bootstrap.session import BEATS_PER_LEASE, DEFAULT_LEASE_S, RETRY_S, Session
from tests.support.bootstrap_facts import make_info, make_peer, make_ref

SERVICE = make_ref("bootstrap", 1)
INFO = make_info(make_peer(make_ref("p0", 1)))
LOAD = WorkerLoad(num_running=1)


def ready_session(now: float = 0.0) -> Session:
    """A session that is registered and knows that there are no members."""
    session = Session(INFO, now)
    session.beat(LOAD, now)
    session.receive(SERVICE, Registered(2.0), now)
    session.receive(SERVICE, Snapshot(SERVICE, 0, ()), now)
    return session


def test_first_beat_registers_and_subscribes_at_once() -> None:
    session = Session(INFO, 5.0)
    assert session.due_at == 5.0
    assert session.beat(LOAD, 7.0) == [Register(INFO, 2.0, LOAD), Subscribe(loads=False)]
    assert not session.ready


def test_registered_session_heartbeats_at_the_lease_it_was_told() -> None:
    session = ready_session()
    assert session.ready
    assert session.beat(LOAD, 1.0) == [Heartbeat(LOAD), Subscribe(SERVICE, 0, loads=False)]
    assert session.due_at == 1.0 + 2.0 / BEATS_PER_LEASE


def test_without_registration_it_only_subscribes_and_hears_loads() -> None:
    session = Session(None, 0.0)
    assert session.beat(LOAD, 0.0) == [Subscribe()]
    session.receive(SERVICE, Snapshot(SERVICE, 0, ()), 0.0)
    assert session.ready


def test_changed_facts_are_registered_at_once() -> None:
    session = ready_session()
    session.beat(LOAD, 1.0)
    changed = make_info(make_peer(make_ref("p0", 1)), blob=b"other")
    session.change(changed)
    assert session.due_at == 1.0 + RETRY_S
    assert session.beat(LOAD, 1.1)[0] == Register(changed, 1.1, LOAD)
    session.receive(SERVICE, Registered(2.0), 1.2)
    assert session.beat(LOAD, 2.0)[0] == Heartbeat(LOAD)


def test_the_answer_to_an_earlier_registration_does_not_count_for_changed_facts() -> None:
    session = Session(INFO, 0.0)
    session.beat(LOAD, 0.0)
    changed = make_info(make_peer(make_ref("p0", 1)), blob=b"other")
    session.change(changed)
    session.receive(SERVICE, Registered(2.0), 0.1)
    assert session.beat(LOAD, 0.2)[0] == Register(changed, 0.2, LOAD)


def test_it_registers_again_soon_when_asked_but_not_in_a_flood() -> None:
    session = ready_session()
    session.beat(LOAD, 10.0)
    for _ in range(20):
        session.receive(SERVICE, RegisterAgain(), 10.01)
    assert session.due_at == 10.0 + RETRY_S
    register, _ = session.beat(LOAD, session.due_at)
    assert register == Register(INFO, 10.0 + RETRY_S, LOAD)
    assert not session.ready


def test_a_gap_asks_for_a_snapshot_soon() -> None:
    session = ready_session()
    session.beat(LOAD, 10.0)
    session.receive(SERVICE, MemberJoined(5, Member(INFO, LOAD)), 10.01)
    assert session.due_at == 10.0 + RETRY_S
    assert session.beat(LOAD, 10.2)[1] == Subscribe(loads=False)


def test_unsent_beats_are_retried_soon() -> None:
    session = ready_session()
    session.beat(LOAD, 1.0)
    session.unsent(1.0)
    assert session.due_at == 1.0 + RETRY_S


def test_connected_means_heard_within_a_lease() -> None:
    session = Session(INFO, 0.0)
    assert not session.connected(0.0)
    session.receive(SERVICE, Subscribed(0, DEFAULT_LEASE_S), 1.0)
    assert session.connected(1.0 + DEFAULT_LEASE_S / 2)
    assert not session.connected(1.0 + DEFAULT_LEASE_S)


def test_members_stay_while_the_service_is_out_of_reach() -> None:
    session = ready_session()
    session.receive(SERVICE, MemberJoined(1, Member(INFO, LOAD)), 0.0)
    reborn = make_ref("bootstrap", 2)
    session.receive(reborn, Snapshot(reborn, 0, ()), 1.0)
    assert session.tick(60.0) == []
    assert len(session.directory.members) == 1


def test_fenced_session_falls_silent_and_says_so_once() -> None:
    session = ready_session()
    ended = Ended(LeaveReason.REPLACED)
    assert session.receive(SERVICE, ended, 1.0) == [Fenced(LeaveReason.REPLACED)]
    assert session.receive(SERVICE, ended, 1.0) == []
    assert session.beat(LOAD, 2.0) == []
    assert session.due_at == float("inf")

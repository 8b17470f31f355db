"""Who is there and who left, as a balancer remembers it."""

from bootstrap.directory import Left
from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import LeaveReason
from cluster.balancer.attendance import MAX_DEPARTURES, Attendance

P = Peer(WorkerRef("p", "0" * 16), "tcp://127.0.0.1:1")
LB = Peer(WorkerRef("lb2", "0" * 16), "tcp://127.0.0.1:2")


def test_a_departure_is_kept_until_the_engine_is_back() -> None:
    attendance = Attendance()
    attendance.joined(P.ref, Role.PREFILL)
    attendance.left(Left(P, LeaveReason.LEASE_EXPIRED), 1.0)
    attendance.left(Left(P, LeaveReason.EVICTED), 2.0)
    (gone,) = attendance.departures.values()
    assert (gone.reason, gone.dead, gone.at, gone.role) == ("evicted", True, 2.0, Role.PREFILL)
    attendance.joined(P.ref, Role.PREFILL)
    assert not attendance.departures


def test_a_balancer_lives_until_it_leaves() -> None:
    attendance = Attendance()
    attendance.joined(LB.ref, Role.BALANCER)
    assert attendance.balancers == {LB.ref}
    attendance.left(Left(LB, LeaveReason.LEASE_EXPIRED), 1.0)
    attendance.left(Left(LB, LeaveReason.EVICTED), 2.0)
    assert not attendance.balancers
    (gone,) = attendance.departures.values()
    assert (gone.role, gone.dead) == (Role.BALANCER, True)
    attendance.joined(LB.ref, Role.BALANCER)
    assert (attendance.balancers, len(attendance.departures)) == ({LB.ref}, 0)


def test_a_strangers_role_is_unknown() -> None:
    attendance = Attendance()
    attendance.left(Left(P, LeaveReason.EVICTED), 1.0)
    assert next(iter(attendance.departures.values())).role is None


def test_memory_is_bounded() -> None:
    attendance = Attendance()
    for number in range(MAX_DEPARTURES + 3):
        peer = Peer(WorkerRef("p", f"{number:016x}"), P.endpoint)
        attendance.left(Left(peer, LeaveReason.EVICTED), float(number))
    assert next(gone.at for gone in attendance.departures.values()) == 3.0
    assert len(attendance.departures) == MAX_DEPARTURES

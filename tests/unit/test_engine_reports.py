"""Progress reports: every second while rooms are held, and for a while after the last one ended."""

from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import LegProgress, Stage
from engine.core import Post
from engine.reports import INTERVAL_S, LINGER_S, ProgressReports

A = Peer(WorkerRef("a", "0" * 16), "tcp://127.0.0.1:1")
B = Peer(WorkerRef("b", "1" * 16), "tcp://127.0.0.1:2")
ROOM = bytes(16)


def test_each_balancer_hears_of_its_own_rooms() -> None:
    reports = ProgressReports()
    rooms = [(A, ROOM, Stage.RUNNING), (B, bytes([1] * 16), Stage.QUEUED)]
    assert reports.due(rooms, 0.0) == [
        Post(A, LegProgress({ROOM: Stage.RUNNING})),
        Post(B, LegProgress({bytes([1] * 16): Stage.QUEUED})),
    ]
    assert reports.due(rooms, INTERVAL_S / 2) == []
    assert len(reports.due(rooms, INTERVAL_S)) == 2


def test_a_balancer_without_rooms_hears_that_it_has_none_until_it_is_forgotten() -> None:
    reports = ProgressReports()
    reports.due([(A, ROOM, Stage.RUNNING)], 0.0)
    assert reports.due([], LINGER_S - 1) == [Post(A, LegProgress({}))]
    assert reports.due([], LINGER_S) == []


def test_a_refused_dispatch_counts_as_one() -> None:
    reports = ProgressReports()
    reports.expect(A, 5.0)
    assert reports.due([], 5.0) == [Post(A, LegProgress({}))]

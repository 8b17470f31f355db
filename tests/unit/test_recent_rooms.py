"""The bounded memory of rooms."""

from bootstrap.recent_rooms import TOMBSTONE_TTL_S, RecentRooms

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_a_room_is_remembered_for_its_time() -> None:
    rooms = RecentRooms()
    rooms.add(A, 0.0)
    rooms.add(B, TOMBSTONE_TTL_S - 1)
    assert A in rooms
    assert B in rooms
    rooms.add(C, TOMBSTONE_TTL_S)
    assert A not in rooms
    assert len(rooms) == 2


def test_a_repeat_does_not_renew() -> None:
    rooms = RecentRooms(ttl_s=10.0)
    rooms.add(A, 0.0)
    rooms.add(A, 9.0)
    rooms.add(B, 10.0)
    assert A not in rooms


def test_the_oldest_go_first_when_there_are_too_many() -> None:
    rooms = RecentRooms(limit=2)
    for room in (A, B, C):
        rooms.add(room, 0.0)
    assert [room in rooms for room in (A, B, C)] == [False, True, True]


def test_discard_says_whether_it_was_here() -> None:
    rooms = RecentRooms()
    rooms.add(A, 0.0)
    assert rooms.discard(A) is True
    assert rooms.discard(A) is False
    assert A not in rooms
    assert len(rooms) == 0


def test_a_memory_without_time_keeps_nothing() -> None:
    rooms = RecentRooms(ttl_s=0.0)
    rooms.add(A, 0.0)
    assert A not in rooms

"""Quarantine: whom each room waits for, when it asks again, and when a dead writer is believed."""

from bootstrap.messages import AbortRoom, FailureReason
from decode.quarantine import ASK_AGAIN_S, SETTLE_S, Quarantine
from engine.core import Post
from tests.support.cores import PREFILL, peer, room


def test_the_writer_is_asked_again_and_again_until_it_answers() -> None:
    quarantine = Quarantine()
    quarantine.add(room(1), PREFILL, 10.0)
    assert quarantine.rooms() == {room(1)}
    assert quarantine.requests(10.0 + ASK_AGAIN_S - 0.01) == []
    ask = Post(PREFILL, AbortRoom(room(1), FailureReason.PEER_ABORTED))
    assert quarantine.requests(10.0 + ASK_AGAIN_S) == [ask]
    assert quarantine.requests(10.0 + ASK_AGAIN_S) == []
    assert quarantine.requests(10.0 + 2 * ASK_AGAIN_S) == [ask]
    assert quarantine.due(1e6) == []
    assert quarantine.end(room(1)) is True
    assert quarantine.end(room(1)) is False
    assert quarantine.requests(1e6) == []


def test_a_dead_writers_rooms_are_due_after_a_settling_time() -> None:
    quarantine = Quarantine()
    quarantine.add(room(1), PREFILL, 0.0)
    quarantine.add(room(2), peer("p", life=1), 0.0)
    quarantine.torn_down(PREFILL.ref, 1.0)
    quarantine.torn_down(PREFILL.ref, 1.4)  # a repeat does not prolong it
    assert quarantine.due(1.0 + SETTLE_S - 0.01) == []
    assert quarantine.due(1.0 + SETTLE_S) == [room(1)]
    assert [post.peer for post in quarantine.requests(9.0)] == [peer("p", life=1)]


def test_after_a_write_cut_short_only_time_ends_it() -> None:
    quarantine = Quarantine()
    quarantine.cut(room(1), 0.0)  # not here: nothing
    quarantine.add(room(1), PREFILL, 0.0)
    assert not quarantine.is_settling(room(1))
    quarantine.cut(room(1), 1.0)
    quarantine.cut(room(1), 1.4)
    assert quarantine.is_settling(room(1))
    assert quarantine.requests(9.0) == []
    assert quarantine.due(1.0 + SETTLE_S - 0.01) == []
    assert quarantine.due(1.0 + SETTLE_S) == [room(1)]


def test_it_knows_whom_each_room_waits_for() -> None:
    quarantine = Quarantine()
    quarantine.add(room(1), PREFILL, 0.0)
    assert quarantine.writer_of(room(1)) == PREFILL
    assert quarantine.writer_of(room(2)) is None

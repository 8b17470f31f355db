"""The transfer machine: a record only after all writes, a stop only when none is in flight."""

import pytest

from bootstrap.errors import IllegalTransition
from kv_transfer.sender import (
    TRANSITIONS,
    Commit,
    Sender,
    SendEvent,
    SendState,
    StartWrite,
    Stopped,
    WriteFailed,
)

_S, _E = SendState, SendEvent
PAGES, REMOTE = (10, 11, 12), (20, 21, 22)


def in_state(state: SendState) -> Sender:
    """A sender of three blocks, led to `state` by events; one write is in flight where one can be."""
    sender = Sender(PAGES)
    if state in (_S.READY, _S.COMMITTED, _S.DONE):
        sender.computed()
    if state not in (_S.WAITING, _S.READY):
        sender.manifest(5, 0, REMOTE)
    if state in (_S.STREAMING, _S.FLUSHING, _S.STOPPING, _S.STOPPED):
        sender.blocks_computed(1)
    if state is _S.FLUSHING:
        sender.computed()
    if state in (_S.COMMITTED, _S.DONE):
        sender.written(0, None)
    if state is _S.DONE:
        sender.accepted()
    if state in (_S.STOPPING, _S.STOPPED):
        sender.end()
    if state is _S.STOPPED:
        sender.written(0, None)
    assert sender.state is state
    sender.validate()
    return sender


EVENTS = {
    _E.MANIFEST: lambda sender: sender.manifest(5, 0, REMOTE),
    _E.BLOCKS: lambda sender: sender.blocks_computed(2),
    _E.COMPUTED: lambda sender: sender.computed(),
    _E.WRITTEN: lambda sender: sender.written(0, None),
    _E.ACCEPTED: lambda sender: sender.accepted(),
    _E.DAMAGED: lambda sender: sender.damaged((1,)),
}


@pytest.mark.parametrize("state", list(_S))
@pytest.mark.parametrize("event", list(EVENTS))
def test_each_state_takes_the_events_of_its_row_and_no_other(
    state: SendState, event: SendEvent
) -> None:
    sender = in_state(state)
    if (state, event) in TRANSITIONS:
        EVENTS[event](sender)
        assert sender.state in TRANSITIONS[state, event]
        sender.validate()
    else:
        with pytest.raises(IllegalTransition):
            EVENTS[event](sender)
        assert sender.state is state


def test_an_illegal_move_tells_the_story() -> None:
    sender = in_state(_S.DONE)
    with pytest.raises(IllegalTransition, match="waiting -computed-> ready; ready -manifest->"):
        sender.accepted()


def test_blocks_stream_while_later_ones_compute() -> None:
    sender = Sender(PAGES)
    assert sender.blocks_computed(1) == []
    assert sender.manifest(5, 0, REMOTE) == [StartWrite(0, ((10, 20),))]
    assert sender.blocks_computed(2) == [StartWrite(1, ((11, 21),))]
    assert sender.blocks_computed(2) == []
    assert sender.written(1, None) == []
    assert sender.computed() == [StartWrite(2, ((12, 22),))]
    assert sender.written(0, None) == []
    assert sender.state is _S.FLUSHING
    assert sender.written(2, None) == [Commit(5)]
    assert sender.state is _S.COMMITTED
    sender.accepted()
    assert sender.state is _S.DONE


def test_a_late_manifest_sends_everything_in_one_write() -> None:
    sender = in_state(_S.READY)
    assert sender.manifest(7, 0, REMOTE) == [StartWrite(0, tuple(zip(PAGES, REMOTE, strict=True)))]
    assert sender.written(0, None) == [Commit(7)]


def test_blocks_that_the_peer_has_are_not_sent() -> None:
    sender = Sender(PAGES)
    sender.blocks_computed(1)
    assert sender.manifest(5, 2, (22,)) == []
    assert sender.blocks_computed(2) == []
    assert sender.computed() == [StartWrite(0, ((12, 22),))]
    assert sender.written(0, None) == [Commit(5)]


@pytest.mark.parametrize("manifest_first", [True, False])
def test_a_peer_that_has_everything_gets_only_the_record(manifest_first: bool) -> None:
    sender = Sender(PAGES)
    if manifest_first:
        assert sender.manifest(5, 3, ()) == []
        assert sender.computed() == [Commit(5)]
    else:
        assert sender.computed() == []
        assert sender.manifest(5, 3, ()) == [Commit(5)]
    sender.validate()


def test_a_manifest_covers_exactly_the_rest_of_the_prompt() -> None:
    sender = Sender(PAGES)
    assert [sender.covers(first, num) for first, num in [(0, 3), (2, 1), (3, 0)]] == [True] * 3
    assert [sender.covers(first, num) for first, num in [(0, 2), (1, 3), (4, 0)]] == [False] * 3


def test_a_failed_write_ends_the_room_when_the_others_are_over() -> None:
    sender = in_state(_S.STREAMING)
    sender.blocks_computed(2)
    assert sender.written(0, "link down") == [WriteFailed("link down")]
    assert sender.state is _S.STOPPING
    assert sender.blocks_computed(3) == []
    assert sender.computed() == []
    assert sender.written(1, "link down") == [Stopped(5, cut=True)]
    assert sender.state is _S.STOPPED


def test_the_last_write_failing_stops_at_once_without_a_record() -> None:
    sender = in_state(_S.FLUSHING)
    assert sender.written(1, None) == []
    assert sender.written(0, "torn") == [WriteFailed("torn"), Stopped(5, cut=True)]
    assert sender.state is _S.STOPPED


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (_S.WAITING, [Stopped(0)]),
        (_S.READY, [Stopped(0)]),
        (_S.STREAMING, []),
        (_S.FLUSHING, []),
        (_S.COMMITTED, [Stopped(5)]),
        (_S.STOPPING, []),
        (_S.DONE, []),
        (_S.STOPPED, []),
    ],
)
def test_an_end_says_stopped_only_when_nothing_is_in_flight(
    state: SendState, expected: list[Stopped]
) -> None:
    sender = in_state(state)
    assert sender.end() == expected
    sender.validate()
    before = sender.state
    assert sender.end() == []
    assert sender.state is before


def test_damaged_blocks_are_written_again_before_the_second_record() -> None:
    sender = in_state(_S.COMMITTED)
    assert sender.damaged((0, 2)) == [StartWrite(1, ((10, 20), (12, 22)))]
    assert sender.state is _S.FLUSHING
    assert sender.written(1, None) == [Commit(5)]
    sender.accepted()
    assert sender.state is _S.DONE


def test_a_room_that_ends_while_blocks_are_written_again_says_stopped_after_them() -> None:
    sender = in_state(_S.COMMITTED)
    sender.damaged((1,))
    assert sender.end() == []
    assert sender.written(1, "torn") == [Stopped(5, cut=True)]


def test_only_blocks_that_were_written_can_be_damaged() -> None:
    sender = Sender(PAGES)
    sender.manifest(5, 1, REMOTE[1:])
    sender.computed()
    asked = ((1, 2), (1,), (0,), (3,))
    assert [sender.was_written(blocks) for blocks in asked] == [True, True, False, False]


def test_an_end_with_a_manifest_and_no_write_names_the_epoch() -> None:
    sender = Sender(PAGES)
    sender.manifest(5, 0, REMOTE)
    assert sender.end() == [Stopped(5)]


def test_the_last_write_of_an_ended_room_says_stopped() -> None:
    sender = in_state(_S.STOPPING)
    assert sender.written(0, None) == [Stopped(5)]

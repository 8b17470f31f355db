"""The page ledger: every move, every refusal, what is evicted first, and how a quarantine ends."""

import pytest

from bootstrap.errors import LedgerError
from kv_transfer.ledger import PageLedger, PageState

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
NAMES = [bytes([i]) * 16 for i in range(8)]


def counts(ledger: PageLedger) -> dict[str, int]:
    ledger.validate()
    found = ledger.counts()
    assert sum(found.values()) == ledger.num_pages
    return {state: count for state, count in found.items() if count}


def cached(ledger: PageLedger, room: bytes, names: list[bytes]) -> list[int]:
    """Run `room` through the ledger so that its pages stay cached under `names`."""
    pages = ledger.take(room, [], len(names))
    assert pages is not None
    for index, name in enumerate(names):
        ledger.name_block(room, index, name)
    ledger.release(room)
    return pages


def exposed(ledger: PageLedger, room: bytes, num_pages: int, prefix: tuple[int, ...] = ()) -> int:
    epoch = ledger.reserve(room, prefix, num_pages)
    assert epoch is not None
    ledger.expose(room)
    return epoch


def test_take_grow_lease_release() -> None:
    ledger = PageLedger(4)
    pages = ledger.take(A, [], 2)
    assert counts(ledger) == {"free": 2, "in_use": 2}
    assert ledger.grow(A, 1) is not None
    assert ledger.pages_of(A)[:2] == tuple(pages or ())
    assert len(ledger.pages_of(A)) == 3
    ledger.lease(A)
    assert counts(ledger) == {"free": 1, "leased": 3}
    assert ledger.release(A) is False
    assert counts(ledger) == {"free": 4}
    assert ledger.rooms() == []


def test_what_does_not_fit_changes_nothing() -> None:
    ledger = PageLedger(3)
    ledger.take(A, [], 2)
    assert ledger.take(B, [], 2) is None
    assert ledger.reserve(B, [], 2) is None
    assert ledger.grow(A, 2) is None
    assert counts(ledger) == {"free": 1, "in_use": 2}
    assert ledger.rooms() == [A]


def test_reserve_expose_commit() -> None:
    ledger = PageLedger(4)
    epoch = ledger.reserve(A, [], 3)
    assert counts(ledger) == {"free": 1, "reserved": 3}
    pages = ledger.expose(A)
    assert counts(ledger) == {"free": 1, "writing": 3}
    assert ledger.commit(A, epoch or 0) == pages == ledger.pages_of(A)
    assert counts(ledger) == {"free": 1, "in_use": 3}
    assert ledger.grow(A, 1) is not None


def test_epochs_only_rise() -> None:
    ledger = PageLedger(4)
    first = exposed(ledger, A, 1)
    ledger.writer_stopped(A, first)
    ledger.release(A)
    assert exposed(ledger, A, 1) > first


def test_a_commit_of_another_epoch_is_refused() -> None:
    ledger = PageLedger(4)
    epoch = exposed(ledger, A, 2)
    with pytest.raises(LedgerError, match="does not wait for epoch"):
        ledger.commit(A, epoch + 1)
    assert counts(ledger) == {"free": 2, "writing": 2}


@pytest.mark.parametrize("prepare", ["nothing", "taken", "reserved", "exposed", "committed"])
@pytest.mark.parametrize("move", ["take", "reserve", "grow", "expose", "commit", "lease"])
def test_each_move_is_refused_wherever_it_does_not_belong(prepare: str, move: str) -> None:
    ledger = PageLedger(8)
    epoch = 1
    if prepare == "taken":
        ledger.take(A, [], 2)
    elif prepare != "nothing":
        epoch = ledger.reserve(A, [], 2) or 0
        if prepare != "reserved":
            ledger.expose(A)
        if prepare == "committed":
            ledger.commit(A, epoch)
    allowed = {
        "nothing": {"take", "reserve"},
        "taken": {"grow", "lease"},
        "reserved": {"expose"},
        "exposed": {"commit"},
        "committed": {"grow", "lease"},
    }[prepare]
    moves = {
        "take": lambda: ledger.take(A, [], 1),
        "reserve": lambda: ledger.reserve(A, [], 1),
        "grow": lambda: ledger.grow(A, 1),
        "expose": lambda: ledger.expose(A),
        "commit": lambda: ledger.commit(A, epoch),
        "lease": lambda: ledger.lease(A),
    }
    before = ledger.counts()
    if move in allowed:
        moves[move]()
        assert ledger.rooms() == [A]
    else:
        with pytest.raises(LedgerError):
            moves[move]()
        assert ledger.counts() == before
    ledger.validate()


@pytest.mark.parametrize("move", ["grow", "lease", "expose", "commit", "take", "reserve"])
def test_a_quarantined_room_takes_no_move(move: str) -> None:
    ledger = PageLedger(8)
    epoch = exposed(ledger, A, 2)
    assert ledger.release(A) is True
    moves = {
        "grow": lambda: ledger.grow(A, 1),
        "lease": lambda: ledger.lease(A),
        "expose": lambda: ledger.expose(A),
        "commit": lambda: ledger.commit(A, epoch),
        "take": lambda: ledger.take(A, [], 1),
        "reserve": lambda: ledger.reserve(A, [], 1),
    }
    with pytest.raises(LedgerError):
        moves[move]()
    assert counts(ledger) == {"free": 6, "quarantined": 2}


def test_a_leased_room_cannot_grow() -> None:
    ledger = PageLedger(4)
    ledger.take(A, [], 1)
    ledger.lease(A)
    with pytest.raises(LedgerError, match="not in use"):
        ledger.grow(A, 1)


# --- cache -----------------------------------------------------------------------------------


def test_named_pages_stay_cached_and_are_found_from_the_first_on() -> None:
    ledger = PageLedger(4)
    pages = cached(ledger, A, NAMES[:3])
    assert counts(ledger) == {"free": 1, "cached": 3}
    assert ledger.lookup(NAMES[:4]) == pages
    assert ledger.lookup([NAMES[7], *NAMES[:2]]) == []
    assert ledger.num_available == 4


def test_free_pages_go_first_then_the_oldest_prefix_from_its_tail() -> None:
    ledger = PageLedger(6)
    old = cached(ledger, A, NAMES[:3])
    young = cached(ledger, B, NAMES[3:5])
    ledger.take(C, [], 1)
    assert ledger.lookup(NAMES[:3]) == old
    ledger.grow(C, 1)
    assert ledger.lookup(NAMES[:3]) == old[:2]
    ledger.grow(C, 1)
    assert ledger.lookup(NAMES[:3]) == old[:1]
    ledger.grow(C, 1)
    assert ledger.lookup(NAMES[:3]) == []
    assert ledger.lookup(NAMES[3:5]) == young
    ledger.grow(C, 1)
    assert ledger.lookup(NAMES[3:5]) == young[:1]
    assert counts(ledger) == {"cached": 1, "in_use": 5}


def test_use_makes_a_prefix_young_again() -> None:
    ledger = PageLedger(4)
    first = cached(ledger, A, NAMES[:2])
    cached(ledger, B, NAMES[2:4])
    ledger.take(C, first, 0)
    ledger.release(C)
    ledger.take(C, [], 2)
    assert ledger.lookup(NAMES[:2]) == first
    assert ledger.lookup(NAMES[2:4]) == []


def test_a_wanted_prefix_is_not_evicted_for_its_own_request() -> None:
    ledger = PageLedger(4)
    prefix = cached(ledger, A, NAMES[:2])
    assert not ledger.can_take(prefix, 3)
    assert ledger.take(B, prefix, 3) is None
    assert ledger.take(B, prefix, 2) is not None
    assert ledger.pages_of(B)[:2] == tuple(prefix)
    assert counts(ledger) == {"in_use": 4}


def test_a_shared_prefix_lives_until_its_last_reader_ends() -> None:
    ledger = PageLedger(6)
    prefix = cached(ledger, A, NAMES[:2])
    ledger.take(A, prefix, 1)
    ledger.take(B, ledger.lookup(NAMES[:2]), 1)
    assert counts(ledger) == {"free": 2, "in_use": 4}
    ledger.lease(A)
    assert ledger.state_of(prefix[0]) is PageState.IN_USE  # B still computes with it
    ledger.release(B)
    assert ledger.state_of(prefix[0]) is PageState.LEASED
    ledger.release(A)
    assert counts(ledger) == {"free": 4, "cached": 2}


def test_a_prefix_may_be_found_while_its_owner_still_uses_it() -> None:
    ledger = PageLedger(4)
    pages = ledger.take(A, [], 2)
    ledger.name_block(A, 0, NAMES[0])
    assert ledger.lookup(NAMES[:2]) == (pages or [])[:1]


def test_the_first_page_of_a_name_keeps_it() -> None:
    ledger = PageLedger(4)
    ledger.take(A, [], 1)
    ledger.take(B, [], 1)
    ledger.name_block(A, 0, NAMES[0])
    ledger.name_block(B, 0, NAMES[0])
    assert ledger.lookup(NAMES[:1]) == list(ledger.pages_of(A))
    ledger.release(B)
    assert counts(ledger) == {"free": 3, "in_use": 1}
    ledger.release(A)
    assert counts(ledger) == {"free": 3, "cached": 1}


def test_a_page_has_one_name() -> None:
    ledger = PageLedger(2)
    ledger.take(A, [], 1)
    ledger.name_block(A, 0, NAMES[0])
    ledger.name_block(A, 0, NAMES[1])
    assert ledger.lookup([NAMES[1]]) == []
    ledger.validate()


def test_flush_frees_what_is_cached_and_names_nothing_any_more() -> None:
    ledger = PageLedger(4)
    cached(ledger, A, NAMES[:2])
    ledger.take(B, [], 1)
    ledger.name_block(B, 0, NAMES[5])
    assert ledger.flush_cache() == 2
    assert ledger.lookup(NAMES[:1]) == ledger.lookup([NAMES[5]]) == []
    ledger.release(B)
    assert counts(ledger) == {"free": 4}


# --- ends ------------------------------------------------------------------------------------


def test_a_release_is_idempotent_and_unknown_rooms_are_nothing() -> None:
    ledger = PageLedger(4)
    assert ledger.release(A) is False
    ledger.take(A, [], 2)
    assert ledger.release(A) is False
    ledger.take(B, [], 4)
    assert ledger.release(A) is False
    assert counts(ledger) == {"in_use": 4}


def test_pages_that_no_peer_knows_are_free_at_once() -> None:
    ledger = PageLedger(4)
    ledger.reserve(A, [], 3)
    assert ledger.release(A) is False
    assert counts(ledger) == {"free": 4}


def test_exposed_pages_go_to_quarantine_until_the_writer_stopped() -> None:
    ledger = PageLedger(4)
    epoch = exposed(ledger, A, 3)
    assert ledger.release(A) is True
    assert counts(ledger) == {"free": 1, "quarantined": 3}
    assert ledger.take(B, [], 2) is None
    assert ledger.release(A) is False  # a repeat does not free them
    assert ledger.num_available == 1
    ledger.writer_stopped(A, epoch + 1)  # of another epoch: nothing
    assert counts(ledger) == {"free": 1, "quarantined": 3}
    ledger.writer_stopped(A, epoch)
    assert counts(ledger) == {"free": 4}
    ledger.writer_stopped(A, epoch)
    assert ledger.rooms() == []


def test_epoch_zero_ends_any_quarantine_of_the_room() -> None:
    ledger = PageLedger(4)
    exposed(ledger, A, 3)
    ledger.release(A)
    ledger.writer_stopped(A, 0)
    assert counts(ledger) == {"free": 4}


def test_a_writer_that_stopped_before_the_end_leaves_no_quarantine() -> None:
    ledger = PageLedger(4)
    epoch = exposed(ledger, A, 3)
    ledger.writer_stopped(A, epoch)
    assert counts(ledger) == {"free": 1, "writing": 3}
    assert ledger.release(A) is False
    assert counts(ledger) == {"free": 4}


def test_quarantine_holds_only_what_was_exposed() -> None:
    ledger = PageLedger(6)
    prefix = cached(ledger, B, NAMES[:2])
    exposed(ledger, A, 2, tuple(prefix))
    assert ledger.release(A) is True
    assert counts(ledger) == {"free": 2, "cached": 2, "quarantined": 2}


def test_nothing_to_write_means_no_quarantine() -> None:
    ledger = PageLedger(4)
    prefix = cached(ledger, B, NAMES[:2])
    epoch = exposed(ledger, A, 0, tuple(prefix))
    assert ledger.release(A) is False
    epoch = exposed(ledger, A, 0, tuple(prefix))
    assert ledger.commit(A, epoch) == tuple(prefix)
    ledger.release(A)
    assert counts(ledger) == {"free": 2, "cached": 2}


def test_a_stop_after_the_commit_changes_nothing() -> None:
    ledger = PageLedger(4)
    epoch = exposed(ledger, A, 2)
    ledger.commit(A, epoch)
    ledger.writer_stopped(A, epoch)
    ledger.writer_stopped(A, 0)
    assert counts(ledger) == {"free": 2, "in_use": 2}


def test_validate_sees_a_miscount() -> None:
    ledger = PageLedger(4)
    ledger.take(A, [], 1)
    ledger._counts[PageState.FREE] -= 1
    with pytest.raises(LedgerError, match="counts"):
        ledger.validate()

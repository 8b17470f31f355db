"""Pages that are kept for a continuation: others go before them, and nobody goes without."""

import pytest

from bootstrap.identity import Role
from bootstrap.messages import FailureReason, TokenBatch
from cluster.balancer.policy import Pair, Pool, Size, select_pair
from engine.core import Received
from kv_transfer.ledger import PageLedger
from prefill.core import PrefillCore
from prefill.handoffs import TransferClosed
from tests.support.cores import (
    BALANCER,
    limits,
    prefill_dispatch,
    prompt,
    room,
    sampling,
    sent,
    step,
)
from tests.support.members import CONTRACT, worker_info

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
NAMES = [bytes([i]) * 16 for i in range(8)]


def cached(ledger: PageLedger, owner: bytes, names: list[bytes], until: float | None) -> list[int]:
    pages = ledger.take(owner, [], len(names))
    assert pages is not None
    for index, name in enumerate(names):
        ledger.name_block(owner, index, name)
    if until is not None:
        ledger.keep(owner, until)
    ledger.release(owner)
    ledger.validate()
    return pages


def test_younger_pages_go_before_those_that_are_kept() -> None:
    ledger = PageLedger(4)
    kept = cached(ledger, A, NAMES[:2], until=10.0)
    cached(ledger, B, NAMES[2:4], until=None)
    assert ledger.take(C, [], 2) is not None
    assert ledger.lookup(NAMES[:2]) == kept
    ledger.validate()


def test_nothing_is_refused_for_the_sake_of_pages_that_are_kept() -> None:
    ledger = PageLedger(4)
    cached(ledger, A, NAMES[:2], until=10.0)
    assert ledger.num_available == 4
    assert ledger.take(C, [], 4) is not None
    assert ledger.lookup(NAMES[:2]) == []
    ledger.validate()


def test_after_its_time_a_page_is_one_of_many() -> None:
    ledger = PageLedger(4)
    cached(ledger, A, NAMES[:2], until=10.0)
    ledger.end_keeping(9.9)
    young = cached(ledger, B, NAMES[2:4], until=12.0)
    ledger.end_keeping(10.0)
    ledger.validate()
    assert ledger.take(C, [], 2) is not None
    assert ledger.lookup(NAMES[2:4]) == young
    assert ledger.lookup(NAMES[:2]) == []


def test_a_page_that_was_used_again_meanwhile_is_still_kept() -> None:
    ledger = PageLedger(4)
    kept = cached(ledger, A, NAMES[:2], until=10.0)
    ledger.take(B, kept, 1)
    ledger.release(B)
    cached(ledger, C, NAMES[2:4], until=None)
    assert ledger.take(B, [], 2) is not None
    assert ledger.lookup(NAMES[:2]) == kept
    ledger.validate()


def test_a_flush_forgets_what_is_kept_too() -> None:
    ledger = PageLedger(4)
    cached(ledger, A, NAMES[:2], until=10.0)
    assert ledger.flush_cache() == 2
    young = cached(ledger, B, NAMES[2:6], until=None)
    assert len(young) == 4
    ledger.validate()


# --- the prefill engine ----------------------------------------------------------------------


def handed_off(core: PrefillCore, number: int, token_ids: tuple[int, ...], now: float) -> None:
    core.handle(Received(BALANCER, prefill_dispatch(number, token_ids)), now)
    while step(core, now):
        pass
    core.handle(TransferClosed(room(number)), now)
    core.validate()


def finished_here(core: PrefillCore, number: int, token_ids: tuple[int, ...], now: float) -> None:
    dispatch = prefill_dispatch(number, token_ids, decode=None, sampling=sampling(1))
    core.handle(Received(BALANCER, dispatch), now)
    while step(core, now):
        pass


@pytest.mark.parametrize(
    ("lease_s", "wait_s", "num_cached"),
    [(10.0, 9.0, 8), (10.0, 10.0, 0), (0.0, 0.0, 0)],
    ids=["in time", "too late", "off"],
)
def test_a_continuation_finds_its_prompts_full_blocks_within_the_lease(
    lease_s: float, wait_s: float, num_cached: int
) -> None:
    core = PrefillCore(limits(num_blocks=6, salvage_lease_s=lease_s))
    handed_off(core, 1, prompt(9), now=0.0)
    core.tick(wait_s)
    finished_here(core, 2, prompt(9, first=30), wait_s)
    finished_here(core, 3, prompt(9, first=60), wait_s)
    finished_here(core, 5, prompt(9, first=45), wait_s)
    core.drain()
    continued = prefill_dispatch(4, (*prompt(9), 7, 7), output_offset=2)
    core.handle(Received(BALANCER, continued), wait_s)
    while step(core, wait_s):
        pass
    (batch,) = sent(core.drain(), TokenBatch, BALANCER)
    (tokens,) = batch.rooms
    assert tokens.stats is not None
    assert tokens.stats.num_cached_tokens == num_cached


# --- the balancer ----------------------------------------------------------------------------

P1, P2, D1 = (
    worker_info("p1", Role.PREFILL),
    worker_info("p2", Role.PREFILL),
    worker_info("d1", Role.DECODE),
)
POOLS = [Pool(CONTRACT, (P1, P2), (D1,))]
SIZE = Size(10, 10)


def test_a_continuation_goes_to_the_prefill_engine_that_has_its_prompt_however_busy() -> None:
    load = {P2.peer.ref: 500}
    assert select_pair(POOLS, load, SIZE, {}) == Pair(P1, D1)
    assert select_pair(POOLS, load, SIZE, {}, prefers=P2.peer.ref) == Pair(P2, D1)


@pytest.mark.parametrize("reason", [FailureReason.PEER_LOST, FailureReason.TRANSFER_FAILED])
def test_but_not_to_one_that_failed_it(reason: FailureReason) -> None:
    blamed = {P2.peer.ref: reason}
    assert select_pair(POOLS, {}, SIZE, blamed, prefers=P2.peer.ref) == Pair(P1, D1)

"""Every order of events of one prefill and one decode engine, with one fault at any moment.

Unlike the random storms this leaves out nothing within its bounds: three blocks of prompt, one or two
rooms that compete for the same pages, one cancelled request, lost message, failed write or dead engine.
"""

from collections import Counter

import pytest

from bootstrap.sampling import SamplingParams
from kv_transfer.ledger import PageLedger, PageState
from tests.support.cores import limits, prompt
from tests.support.joined_explore import SmallCluster, explore
from tests.support.joined_memory import VOCAB_SIZE

MAX_STATES = 40_000
ENGINES_DIE = [(f"kill {who} {how}",) for who in ("p0", "d0") for how in ("", "lose", "silent")]
DAMAGE_THEN = [
    "cancel 0",
    "fail-write",
    "lose-message p0 d0",
    "lose-message d0 p0",
    "kill p0 lose",
    "kill p0 silent",
    "kill d0",
]
LINKS_FAIL = [("fail-write",), ("lose-message p0 d0",), ("lose-message d0 p0",)]


def small(
    faults: tuple[str, ...],
    num_tokens: tuple[int, ...],
    max_tokens: int,
    *,
    verify: bool = True,
) -> SmallCluster:
    """Pools of three blocks; prompts of `num_tokens` are dispatched, nothing has arrived yet."""
    pool = limits(num_blocks=3, vocab_size=VOCAB_SIZE, verify_handoff=verify)
    cluster = SmallCluster(faults, prefill_limits=pool, decode_limits=pool)
    for who, news in cluster.news.items():
        while news:
            cluster.apply(("news", who))
    for number, num in enumerate(num_tokens):
        params = SamplingParams(seed=1, max_tokens=max_tokens)
        cluster.balancer.submit(prompt(num, first=40 * number), params, deadline_s=1000.0)
    for node in cluster.nodes.values():
        node.begin(cluster.now)  # the first progress report is out of the way
    cluster.settle()
    return cluster


def all_ends(cluster: SmallCluster) -> tuple[Counter, int]:
    """Outcomes of all requests in every final state, and how many states there are."""
    ends: Counter = Counter()

    def at_end(state: SmallCluster) -> None:
        assert state.done(), state.leftovers()
        ends[tuple(request.outcome for request in state.balancer.requests)] += 1

    num_states = explore(cluster, at_end, MAX_STATES)
    return ends, num_states


def test_two_rooms_that_cannot_both_be_held_finish_in_every_order() -> None:
    ends, num_states = all_ends(small((), (5, 3), 2))
    assert set(ends) == {("finished", "finished")}
    assert num_states > 100


@pytest.mark.parametrize("faults", [("cancel 0",), *LINKS_FAIL])
def test_two_rooms_and_one_of_them_fails(faults: tuple[str, ...]) -> None:
    ends, num_states = all_ends(small(faults, (5, 3), 2))
    assert ("finished", "finished") in ends
    assert all("finished" in outcomes for outcomes in ends), "the other room suffered"
    assert num_states > 500


@pytest.mark.parametrize("faults", [("kill p0 lose",), ("kill d0 lose",)])
def test_two_rooms_and_an_engine_goes(faults: tuple[str, ...]) -> None:
    ends, num_states = all_ends(small(faults, (5, 3), 2))
    assert {("finished", "finished"), ("peer_lost", "peer_lost")} <= set(ends)
    assert num_states > 500


@pytest.mark.parametrize("faults", [("cancel 0",), *LINKS_FAIL, *ENGINES_DIE])
def test_one_room_of_three_blocks_and_one_fault(faults: tuple[str, ...]) -> None:
    ends, _ = all_ends(small(faults, (9,), 3))
    assert ("finished",) in ends
    if faults[0].startswith("lose-message"):
        assert set(ends) == {("finished",)}, "a lost message is said again"


@pytest.mark.parametrize("then", ["", *DAMAGE_THEN])
def test_damaged_blocks_are_written_again_and_never_decoded(then: str) -> None:
    ends, num_states = all_ends(small((f"corrupt-write {then}".strip(),), (9,), 3))
    assert ("finished",) in ends
    if not then or then.startswith("lose-message"):
        assert set(ends) == {("finished",)}
    assert num_states > 50


def test_blocks_that_are_damaged_twice_fail_the_room_alone() -> None:
    ends, _ = all_ends(small(("corrupt-write corrupt-write",), (5, 3), 2))
    assert ("finished", "finished") in ends
    assert ("handoff_rejected", "finished") in ends
    assert ("handoff_rejected", "handoff_rejected") not in ends


def test_the_search_finds_damaged_blocks_without_verification() -> None:
    with pytest.raises(AssertionError, match=r"where .* should be"):
        all_ends(small(("corrupt-write",), (9,), 3, verify=False))


def test_the_search_finds_what_is_wrong_without_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    release = PageLedger.release

    def release_at_once(ledger: PageLedger, room: bytes) -> bool:
        holding = ledger._rooms.get(room)
        if holding is not None and holding.incoming_state is PageState.WRITING:
            holding.writer_stopped = True
        return release(ledger, room)

    monkeypatch.setattr(PageLedger, "release", release_at_once)
    with pytest.raises(AssertionError, match="landed in a page that is"):
        all_ends(small(("cancel 0",), (9,), 3))

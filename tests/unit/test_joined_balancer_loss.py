"""Every order of events in which the load balancer is lost: each page comes back, whatever was going on."""

import pytest

from bootstrap.sampling import SamplingParams
from decode.core import DecodeCore
from prefill.core import PrefillCore
from tests.support.cores import limits, prompt
from tests.support.joined_explore import explore
from tests.support.joined_lonely import WORDS, LonelyCluster
from tests.support.joined_memory import VOCAB_SIZE

MAX_STATES = 40_000
FAULTS = [f"lose-balancer {word} lose" for word in WORDS]
FAULTS += ["lose-balancer dead", "lose-balancer silent"]


def small(fault: str, num_tokens: tuple[int, ...], max_tokens: int) -> LonelyCluster:
    """Pools of three blocks; prompts of `num_tokens` are dispatched, nothing has arrived yet."""
    pool = limits(num_blocks=3, vocab_size=VOCAB_SIZE)
    cluster = LonelyCluster((fault,), prefill_limits=pool, decode_limits=pool)
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


def all_ends(cluster: LonelyCluster) -> tuple[set[tuple[str | None, ...]], int]:
    """Outcomes in every final state, and how many states there are; nothing is held in any end."""
    ends = set()

    def at_end(state: LonelyCluster) -> None:
        assert state.done(), state.leftovers()
        ends.add(tuple(request.outcome for request in state.balancer.requests))

    return ends, explore(cluster, at_end, MAX_STATES)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", FAULTS)
def test_one_room_of_three_blocks(fault: str) -> None:
    ends, num_states = all_ends(small(fault, (9,), 3))
    assert ends == {("finished",), ("balancer lost",)}
    assert num_states > 200


def test_two_rooms_that_compete_for_pages() -> None:
    ends, num_states = all_ends(small("lose-balancer dead lose", (5, 3), 2))
    assert {("finished", "finished"), ("balancer lost", "balancer lost")} <= ends
    assert num_states > 500


@pytest.mark.parametrize("core", [PrefillCore, DecodeCore])
def test_either_engine_alone_is_enough(
    core: type[PrefillCore] | type[DecodeCore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_end_rooms_of", lambda *_: None)
    ends, _ = all_ends(small("lose-balancer dead", (9,), 3))
    assert ("balancer lost",) in ends


def test_the_search_finds_rooms_that_nobody_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for core in (PrefillCore, DecodeCore):
        monkeypatch.setattr(core, "_end_rooms_of", lambda *_: None)
    with pytest.raises(AssertionError, match="something hangs"):
        all_ends(small("lose-balancer dead lose", (9,), 200))

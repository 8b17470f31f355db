"""Both cores and the protocol between them, in any order of events, with anything failing.

After every event all engines are whole, no page is written by two rooms, a write lands only where its
room still waits for it, a decode step reads exactly the KV that the prompt and its output have, and the
client gets the solo run's tokens: none wrong, none lost, none twice.
"""

from collections import Counter
from random import Random

import pytest

from engine.limits import EngineLimits
from kv_transfer.ledger import PageLedger, PageState
from tests.support.cores import limits
from tests.support.joined import Cluster
from tests.support.joined_faults import Storm, submit_many, weather
from tests.support.joined_memory import VOCAB_SIZE, PageViolation


def pools(num_blocks: int, **overrides: object) -> EngineLimits:
    return limits(num_blocks=num_blocks, vocab_size=VOCAB_SIZE, max_queue=999, **overrides)


def cluster_of(
    rng: Random, num_prefills: int, num_decodes: int, *, verify: bool = True, **options: object
) -> Cluster:
    """Pools of two prompts in prefill, of two requests and a half in decode."""
    return Cluster(
        rng,
        num_prefills=num_prefills,
        num_decodes=num_decodes,
        prefill_limits=pools(6, prefix_caching=rng.random() < 0.7, verify_handoff=verify),
        decode_limits=pools(15, prefix_caching=rng.random() < 0.7, max_num_seqs=rng.randint(2, 6)),
        **options,
    )


def outcomes(cluster: Cluster) -> Counter:
    return Counter(request.outcome for request in cluster.balancer.requests)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("num_prefills", "num_decodes"), [(1, 1), (2, 2), (1, 3), (3, 1)])
def test_many_requests_through_tiny_pools_all_finish(
    num_prefills: int, num_decodes: int, seed: int
) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, num_prefills, num_decodes)
    submit_many(cluster, rng, 64)
    cluster.run_idle()
    assert outcomes(cluster) == {"finished": 64}
    assert cluster.now < 1.0, "somebody waited for time to pass"


@pytest.mark.parametrize("seed", range(10))
def test_pools_of_one_request_give_way_and_all_finish(seed: int) -> None:
    rng = Random(seed)
    cluster = Cluster(rng, num_prefills=2, num_decodes=2, decode_limits=pools(6))
    submit_many(cluster, rng, 32)
    cluster.run_idle()
    assert outcomes(cluster) == {"finished": 32}


@pytest.mark.parametrize("seed", range(10))
def test_clients_leave_and_writes_are_slow(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2)
    submit_many(cluster, rng, 24)
    weather(cluster, rng, Storm(cancel=0.03, slow_writes=0.9))
    assert set(outcomes(cluster)) <= {"finished", "cancelled"}


@pytest.mark.parametrize("seed", range(12))
def test_engines_die_at_any_moment_and_every_stream_survives(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000)
    submit_many(cluster, rng, 16)
    weather(cluster, rng, Storm(crash=0.01, slow_writes=0.6))
    assert outcomes(cluster) == {"finished": 16}


@pytest.mark.parametrize("seed", range(12))
def test_engines_fall_silent_and_are_heard_again(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000)
    submit_many(cluster, rng, 16)
    weather(cluster, rng, Storm(fall_silent=0.02, slow_writes=0.6))
    assert outcomes(cluster) == {"finished": 16}


@pytest.mark.parametrize("seed", range(10))
def test_writes_and_steps_fail(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000)
    submit_many(cluster, rng, 16)
    weather(cluster, rng, Storm(fail_write=0.05, fail_step=0.05, slow_writes=0.5))
    assert outcomes(cluster) == {"finished": 16}


@pytest.mark.parametrize("seed", range(10))
def test_messages_between_engines_are_lost(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000)
    submit_many(cluster, rng, 16)
    weather(cluster, rng, Storm(lose_message=0.05, cancel=0.01))
    assert set(outcomes(cluster)) <= {"finished", "cancelled"}
    assert cluster.now < 100.0, "a lost message cost somebody the deadline"


@pytest.mark.parametrize("seed", range(10))
def test_writes_that_claim_success_land_damaged(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000)
    submit_many(cluster, rng, 16)
    weather(cluster, rng, Storm(corrupt_write=0.1, slow_writes=0.5, lose_message=0.02))
    assert outcomes(cluster) == {"finished": 16}
    assert cluster.num_corrupted > 3
    assert cluster.now < 100.0, "only a deadline ended a leg"


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_taken_for_damaged_that_is_not(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000)
    nodes = list(cluster.nodes.values())
    submit_many(cluster, rng, 24)
    weather(cluster, rng, Storm(cancel=0.005, fail_write=0.02, lose_message=0.05))
    counted = Counter()
    for node in nodes:
        counted.update(node.core.load().counters)
    assert counted["blocks_verified"] > 20
    assert counted["blocks_damaged"] == counted["blocks_resent"] == 0


@pytest.mark.parametrize("seed", range(8))
def test_writes_are_cut_short_and_the_news_of_it_is_lost(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000)
    submit_many(cluster, rng, 16)
    storm = Storm(lose_message=0.3, fail_write=0.2, slow_writes=0.95, pass_time=0.05)
    weather(cluster, rng, storm)
    assert outcomes(cluster) == {"finished": 16}


@pytest.mark.parametrize("seed", range(12))
def test_everything_at_once(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, rng.randint(1, 3), rng.randint(1, 3), max_attempts=5)
    submit_many(cluster, rng, 20, deadline_s=rng.choice([5.0, 1000.0]))
    storm = Storm(
        num_events=800,
        cancel=0.01,
        crash=0.005,
        fall_silent=0.005,
        fail_write=0.01,
        corrupt_write=0.02,
        fail_step=0.01,
        lose_message=0.01,
        slow_writes=rng.random(),
    )
    weather(cluster, rng, storm)
    assert None not in outcomes(cluster)


@pytest.mark.parametrize("seed", range(10))
def test_a_failed_leg_ends_the_other_without_the_balancer(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 2, 2, max_attempts=1000, links_legs=False)
    submit_many(cluster, rng, 16)
    weather(cluster, rng, Storm(crash=0.01, fail_write=0.03, fail_step=0.02, slow_writes=0.5))
    assert outcomes(cluster) == {"finished": 16}
    assert cluster.now < 100.0, "only a deadline ended a leg"


@pytest.mark.parametrize("seed", range(10))
def test_deadlines_end_what_cannot_end_otherwise(seed: int) -> None:
    rng = Random(seed)
    cluster = cluster_of(rng, 1, 1)
    submit_many(cluster, rng, 12, deadline_s=3.0)
    weather(cluster, rng, Storm(num_events=150, slow_writes=1.0, pass_time=0.1))
    assert set(outcomes(cluster)) <= {"finished", "deadline"}


# --- that these tests can fail ---------------------------------------------------------------


def release_at_once(ledger: PageLedger, room: bytes) -> bool:
    """What `release` would be without quarantine."""
    holding = ledger._rooms.get(room)
    if holding is not None and holding.incoming_state is PageState.WRITING:
        holding.writer_stopped = True
    return _release(ledger, room)


_release = PageLedger.release


def victims(check_landing: bool) -> list[str]:
    """What goes wrong in runs with cancelled requests and slow writes; digests would find some of it."""
    found = []
    for seed in range(20):
        rng = Random(seed)
        cluster = cluster_of(rng, 2, 2, verify=False)
        cluster.checks_landing = check_landing
        for node in cluster.nodes.values():
            node.memory.strict = check_landing
        submit_many(cluster, rng, 24)
        try:
            weather(cluster, rng, Storm(cancel=0.03, slow_writes=0.9))
        except AssertionError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_without_quarantine_late_writes_are_caught_where_they_land(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PageLedger, "release", release_at_once)
    found = victims(check_landing=True)
    assert len(found) > 10
    assert all(each.startswith(PageViolation.__name__) for each in found)


def test_without_quarantine_and_landing_checks_clients_get_wrong_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PageLedger, "release", release_at_once)
    assert any("is wrong" in each for each in victims(check_landing=False))


def test_without_verification_damaged_blocks_are_decoded_from() -> None:
    found = 0
    for seed in range(4):
        rng = Random(seed)
        limits_of_both = {"prefill_limits": pools(6), "decode_limits": pools(15)}
        cluster = Cluster(rng, num_prefills=2, num_decodes=2, max_attempts=1000, **limits_of_both)
        submit_many(cluster, rng, 16)
        try:
            weather(cluster, rng, Storm(corrupt_write=0.1))
        except PageViolation:
            found += 1
    assert found == 4


def test_with_quarantine_late_writes_do_land_and_harm_nobody() -> None:
    num_late = 0
    for seed in range(10):
        rng = Random(seed)
        cluster = cluster_of(rng, 2, 2)
        submit_many(cluster, rng, 24)
        weather(cluster, rng, Storm(cancel=0.03, slow_writes=0.9))
        num_late += cluster.num_landed_late
    assert num_late > 10

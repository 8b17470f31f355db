"""Pairs are chosen by load, size and what a request has already met."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.identity import Role
from bootstrap.messages import FailureReason as R
from cluster.balancer.policy import NoPair, Pair, Pool, Size, select_pair
from tests.support.members import CONTRACT, LIMITS, worker_info


def prefill(name, **limits):
    return worker_info(name, Role.PREFILL, limits=msgspec.structs.replace(LIMITS, **limits))


def decode(name, **limits):
    return worker_info(name, Role.DECODE, limits=msgspec.structs.replace(LIMITS, **limits))


P1, P2, D1, D2 = prefill("p1"), prefill("p2"), decode("d1"), decode("d2")
OTHER_CONTRACT = msgspec.structs.replace(CONTRACT, dtype="bfloat16")
SMALL = Size(10, 10)


def pool(*infos):
    prefills = tuple(i for i in infos if i.role is Role.PREFILL)
    decodes = tuple(i for i in infos if i.role is Role.DECODE)
    return Pool(infos[0].contract, prefills, decodes)


ALL = [pool(P1, P2, D1, D2)]


def ref(info):
    return info.peer.ref


def test_the_least_loaded_of_each_side():
    load = {ref(P1): 5, ref(P2): 4, ref(D1): 1, ref(D2): 9}
    assert select_pair(ALL, load, SMALL, {}) == Pair(P2, D1)


def test_a_worker_without_partner_is_not_chosen_however_idle():
    lonely = worker_info("p3", Role.PREFILL, contract=OTHER_CONTRACT)
    pools = [pool(P1, D1), pool(lonely)]
    assert select_pair(pools, {ref(P1): 100}, SMALL, {}) == Pair(P1, D1)


def test_pairs_never_cross_contracts():
    p3 = worker_info("p3", Role.PREFILL, contract=OTHER_CONTRACT)
    d3 = worker_info("d3", Role.DECODE, contract=OTHER_CONTRACT)
    load = {ref(P1): 5, ref(d3): 50}
    assert select_pair([pool(P1, D1), pool(p3, d3)], load, SMALL, {}) == Pair(p3, d3)


def test_nobody_at_all():
    assert select_pair([], {}, SMALL, {}) == NoPair(saturated=False)


def test_size_is_held_against_the_smaller_limits():
    p, d = prefill("p", num_blocks=4), decode("d", num_blocks=8, max_model_len=100)
    for size, fits in [
        (Size(64, 36), True),
        (Size(64, 37), False),  # the decode worker's model length
        (Size(65, 1), False),  # the prefill worker's pages
    ]:
        assert isinstance(select_pair([pool(p, d)], {}, size, {}), Pair) == fits
        assert (size.num_output <= pool(p, d).max_output(size.num_prompt)) == fits
    d = decode("d", num_blocks=8)
    assert pool(P1, d).max_output(100) == 28  # the decode worker's pages
    assert pool(prefill("p", max_model_len=50), d).max_output(20) == 30


def test_only_workers_that_fit_are_chosen():
    pools = [pool(P1, decode("d1", num_blocks=2), D2)]
    assert select_pair(pools, {ref(D2): 99}, Size(30, 3), {}) == Pair(P1, D2)
    pools = [pool(P1, decode("d1", num_blocks=2))]
    assert select_pair(pools, {}, Size(30, 3), {}) == NoPair(saturated=False)


def test_blamed_workers_are_avoided_and_returned_to_only_for_transient_faults():
    one = [pool(P1, D1)]
    assert select_pair(ALL, {ref(P2): 9}, SMALL, {ref(P1): R.PEER_LOST}) == Pair(P2, D1)
    assert select_pair(ALL, {ref(P2): 9}, SMALL, {ref(P1): R.TRANSFER_FAILED}) == Pair(P2, D1)
    assert select_pair(one, {}, SMALL, {ref(P1): R.TRANSFER_FAILED}) == Pair(P1, D1)
    assert select_pair(one, {}, SMALL, {ref(P1): R.PEER_LOST}) == NoPair(saturated=False)


def test_a_restarted_worker_is_not_the_one_that_was_blamed():
    again = worker_info("p1", Role.PREFILL, incarnation="1" * 16)
    assert select_pair([pool(again, D1)], {}, SMALL, {ref(P1): R.PEER_LOST}) == Pair(again, D1)


class Full:
    """Workers that have enough to do."""

    def __init__(self, *infos):
        self.refs = {ref(info) for info in infos}

    def takes_prompt(self, info, num_prompt):
        return ref(info) not in self.refs

    def takes_sequence(self, info):
        return ref(info) not in self.refs


def test_who_has_enough_to_do_is_told_apart_from_absence():
    one = [pool(P1, D1)]
    assert select_pair(one, {}, SMALL, {}, Full(D1)) == NoPair(saturated=True)
    assert select_pair(one, {}, SMALL, {}, Full(P1)) == NoPair(saturated=True)
    assert select_pair(one, {}, SMALL, {ref(P1): R.PEER_LOST}, Full(D1)) == NoPair(saturated=False)
    assert select_pair(ALL, {ref(P2): 9}, SMALL, {}, Full(P1)) == Pair(P2, D1)


@given(st.dictionaries(st.sampled_from([P1, P2, D1, D2]), st.integers(0, 5)))
def test_nobody_in_the_pool_is_less_loaded(load):
    outstanding = {ref(info): tokens for info, tokens in load.items()}
    chosen = select_pair(ALL, outstanding, SMALL, {})
    assert outstanding.get(ref(chosen.prefill), 0) == min(load.get(P1, 0), load.get(P2, 0))
    assert outstanding.get(ref(chosen.decode), 0) == min(load.get(D1, 0), load.get(D2, 0))

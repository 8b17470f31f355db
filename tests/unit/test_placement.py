"""Engines go to nodes of their role where nodes have roles, and anywhere else."""

import pytest

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster.placement import Node, check_addresses, shortage, slot

HEAD = Node("10.0.0.1", {"pd-role": "head"}, {"CPU": 8.0})
PREFILL = Node("10.0.0.2", {"pd-role": "prefill"}, {"CPU": 8.0, "pd_prefill": 1.0})
BOTH = Node("10.0.0.3", {}, {"pd_prefill": 1.0, "pd_decode": 2.0})


def test_nodes_without_roles_take_everybody() -> None:
    assert slot(Role.PREFILL, {}) == {}
    assert slot(Role.DECODE, {"ray.io/node-id": "x"}) == {}


def test_an_engine_claims_a_slot_of_its_role_even_when_none_is_there_yet() -> None:
    labels = {"pd-role": "head"}
    assert slot(Role.PREFILL, labels) == {"pd_prefill": 1.0}
    assert slot(Role.DECODE, labels) == {"pd_decode": 1.0}


def test_the_bootstrap_service_stays_with_its_supervisor() -> None:
    assert slot(Role.BOOTSTRAP, {"pd-role": "head"}) == {}


def test_a_node_with_slots_is_enough_where_the_head_has_no_role() -> None:
    assert slot(Role.DECODE, {}, [PREFILL]) == {"pd_decode": 1.0}
    assert slot(Role.DECODE, {}, [Node("10.0.0.1", {}, {"CPU": 8.0})]) == {}


def test_missing_slots_are_counted_and_every_offer_is_named() -> None:
    assert shortage(Role.PREFILL, 2, [HEAD, PREFILL, BOTH]) is None
    assert shortage(Role.DECODE, 3, [HEAD, PREFILL, BOTH]) == (
        "waiting for a slot: 1 of 3 pd_decode missing; nodes offer: 10.0.0.1 (head) none,"
        " 10.0.0.2 (prefill) 1 pd_prefill, 10.0.0.3 1 pd_prefill and 2 pd_decode"
    )


def test_of_many_nodes_some_are_named() -> None:
    words = shortage(Role.DECODE, 1, [Node(f"10.0.0.{n}", {}, {}) for n in range(1, 21)])
    assert words is not None
    assert words.endswith("10.0.0.7 none, 10.0.0.8 none and 12 more")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_a_loopback_address_is_refused_where_others_are_remote(address: str) -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.2 cannot reach it: .*--node-ip-address"):
        check_addresses(["10.0.0.2", address])
    check_addresses([address, address])


def test_names_and_other_addresses_are_taken() -> None:
    check_addresses(["10.0.0.2", "10.0.0.3", "head.example"])

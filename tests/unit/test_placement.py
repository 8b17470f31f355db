"""Engines go to nodes of their role where nodes have roles, and anywhere else."""

from bootstrap.identity import Role
from cluster.placement import slot


def test_nodes_without_roles_take_everybody() -> None:
    assert slot(Role.PREFILL, {}) == {}
    assert slot(Role.DECODE, {"ray.io/node-id": "x"}) == {}


def test_an_engine_claims_a_slot_of_its_role_even_when_none_is_there_yet() -> None:
    labels = {"pd-role": "head"}
    assert slot(Role.PREFILL, labels) == {"pd_prefill": 1.0}
    assert slot(Role.DECODE, labels) == {"pd_decode": 1.0}


def test_the_bootstrap_service_stays_with_its_supervisor() -> None:
    assert slot(Role.BOOTSTRAP, {"pd-role": "head"}) == {}

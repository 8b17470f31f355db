"""Readiness follows from tokens that passed over a pair which is still there."""

from bootstrap.identity import Role
from cluster.balancer.policy import Pool
from cluster.balancer.readiness import RECENT_S, Readiness
from tests.support.members import CONTRACT, worker_info

P, D = worker_info("p", Role.PREFILL), worker_info("d", Role.DECODE)
REFS = (P.peer.ref, D.peer.ref)
POOLS = [Pool(CONTRACT, (P,), (D,))]


def test_registration_alone_is_no_proof():
    assert "no request" in Readiness().unproven_reason(POOLS, 0.0)


def test_a_served_pair_is_proof_for_a_while():
    readiness = Readiness()
    readiness.served(REFS, 1.0)
    assert readiness.unproven_reason(POOLS, 1.0 + RECENT_S / 2) is None
    assert readiness.unproven_reason(POOLS, 1.0 + RECENT_S) is not None


def test_only_pairs_that_can_serve_now_count():
    readiness = Readiness()
    readiness.served(REFS, 1.0)
    again = worker_info("d", Role.DECODE, incarnation="1" * 16)
    assert readiness.unproven_reason([Pool(CONTRACT, (P,), (again,))], 1.0) is not None
    readiness.keep_only([P.peer.ref, again.peer.ref])
    assert readiness.unproven_reason(POOLS, 1.0) is not None


def test_a_failed_probe_takes_the_proof_away_and_is_named_until_the_next_success():
    readiness = Readiness()
    readiness.served(REFS, 1.0)
    readiness.probe_failed("transfer_failed", conclusive=True)
    assert "transfer_failed" in readiness.unproven_reason(POOLS, 1.1)
    readiness.served(REFS, 1.2)
    assert readiness.unproven_reason(POOLS, 1.3) is None


def test_a_probe_that_found_only_full_queues_proves_nothing():
    readiness = Readiness()
    readiness.served(REFS, 1.0)
    readiness.probe_failed("overloaded", conclusive=False)
    assert readiness.unproven_reason(POOLS, 1.1) is None

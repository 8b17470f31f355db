"""Who pairs with whom, and what is said when nobody does."""

import msgspec

from bootstrap.identity import Role
from bootstrap.membership import WorkerLoad, WorkerState
from cluster.balancer.members import Members
from tests.support.members import CONTRACT, member

P1, P2 = member("p1", Role.PREFILL), member("p2", Role.PREFILL)
D1 = member("d1", Role.DECODE)
OTHER = msgspec.structs.replace(CONTRACT, dtype="bfloat16", block_size=32)


def members(*joined, **settings) -> Members:
    made = Members(**settings)
    for one in joined:
        made.joined(one)
    return made


def test_equal_contracts_pair_each_with_each():
    pairs = members(P1, P2, D1).pairs()
    assert [(p.prefill.peer.ref.worker_id, p.decode.peer.ref.worker_id) for p in pairs] == [
        ("p1", "d1"),
        ("p2", "d1"),
    ]


def test_a_missing_role_is_named():
    assert members(P1).unready_reason().missing_roles == ("decode",)
    assert members().unready_reason().message == "no ready prefill and no ready decode worker"


def test_differing_fields_are_named_and_do_not_stop_the_others():
    odd = member("d2", Role.DECODE, contract=OTHER)
    made = members(P1, odd)
    reason = made.unready_reason()
    assert reason.message == "no prefill and decode worker agree: block_size, dtype differ"
    (refusal,) = reason.refusals
    assert refusal.differences == ("dtype: 'float32' != 'bfloat16'", "block_size: 16 != 32")
    made.joined(D1)
    assert made.unready_reason() is None
    assert len(made.refusals) == 1
    assert len(made.pairs()) == 1


def test_a_draining_worker_serves_nobody_until_it_is_ready_again():
    made = members(P1, D1)
    made.load(D1.info.peer.ref, WorkerLoad(state=WorkerState.DRAINING))
    assert made.unready_reason().missing_roles == ("decode",)
    made.load(D1.info.peer.ref, WorkerLoad(num_running=3))
    assert made.unready_reason() is None
    assert next(m for m in made if m.info == D1.info).load.num_running == 3


def test_a_worker_that_left_is_gone_and_unknown_ones_are_no_error():
    made = members(P1, D1)
    made.left(P2.info.peer.ref)
    made.load(P2.info.peer.ref, WorkerLoad())
    made.left(P1.info.peer.ref)
    assert made.pairs() == []
    assert made.refs == {D1.info.peer.ref}


def test_workers_with_another_tokenizer_than_ours_are_refused():
    made = members(P1, D1, tokenizer_digest="mine")
    reason = made.unready_reason()
    assert "tokenizer_digest" in reason.message
    assert {(r.prefill, r.decode) for r in reason.refusals} == {
        (str(P1.info.peer.ref), "balancer"),
        ("balancer", str(D1.info.peer.ref)),
    }


def test_refusals_are_bounded():
    prefills = [member(f"p{i}", Role.PREFILL) for i in range(20)]
    decodes = [member(f"d{i}", Role.DECODE, contract=OTHER) for i in range(20)]
    assert len(members(*prefills, *decodes).refusals) == 64

"""Which engines may serve together, and what is said of those that may not."""

import msgspec

from bootstrap.contract import KVContract
from bootstrap.identity import Role
from bootstrap.membership import Member, WorkerInfo, WorkerLoad, WorkerState
from bootstrap.pairing import differences, pairs_of
from tests.support.bootstrap_facts import make_info, make_peer, make_ref

READY = WorkerLoad()


def engine(worker_id: str, role: Role, load: WorkerLoad = READY, **changes: object) -> Member:
    """A member; `changes` are of its registration."""
    info = make_info(make_peer(make_ref(worker_id, 1)), role)
    return Member(msgspec.structs.replace(info, **changes), load)


def contract(info: WorkerInfo, **changes: object) -> KVContract:
    """`info`'s contract with changes."""
    return msgspec.structs.replace(info.contract, **changes)


def test_every_prefill_pairs_with_every_equal_decode() -> None:
    p0, p1 = engine("p0", Role.PREFILL), engine("p1", Role.PREFILL)
    d0, other = engine("d0", Role.DECODE), engine("lb", Role.BALANCER)
    pairing = pairs_of([d0, p0, other, p1])
    assert pairing.serving == ((p0, d0), (p1, d0))
    assert pairing.refusals == ()


def test_refusals_name_each_field_that_differs() -> None:
    p0 = engine("p0", Role.PREFILL)
    fields = contract(p0.info, dtype="bfloat16", block_size=32)
    transfer = msgspec.structs.replace(p0.info.transfer, backend="nixl")
    d0 = engine("d0", Role.DECODE, contract=fields, transfer=transfer, model="big")
    pairing = pairs_of([p0, d0])
    assert pairing.serving == ()
    assert pairing.refusals[0].prefill == p0.info.peer.ref
    assert pairing.refusals[0].decode == d0.info.peer.ref
    assert pairing.refusals[0].differences == (
        "dtype: 'float32' != 'bfloat16'",
        "block_size: 16 != 32",
        "model: 'demo' != 'big'",
        "transfer backend: 'fake' != 'nixl'",
    )
    assert differences(p0.info, d0.info) == pairing.refusals[0].differences


def test_draining_engines_serve_no_new_rooms() -> None:
    p0 = engine("p0", Role.PREFILL)
    d0 = engine("d0", Role.DECODE, WorkerLoad(state=WorkerState.DRAINING))
    pairing = pairs_of([p0, d0])
    assert pairing.serving == ()
    assert pairing.refusals[0].differences == ("decode engine is draining",)

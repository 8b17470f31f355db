"""Which engines may serve together, and what is said of those that may not."""

import msgspec

from bootstrap.identity import Role
from bootstrap.pairing import differences
from tests.support.bootstrap_facts import make_info, make_peer, make_ref

PREFILL = make_info(make_peer(make_ref("p0", 1)), Role.PREFILL)


def test_equal_engines_do_not_differ() -> None:
    assert differences(PREFILL, make_info(make_peer(make_ref("d0", 1)), Role.DECODE)) == ()


def test_each_field_that_differs_is_named() -> None:
    contract = msgspec.structs.replace(PREFILL.contract, dtype="bfloat16", block_size=32)
    transfer = msgspec.structs.replace(PREFILL.transfer, backend="nixl")
    decode = msgspec.structs.replace(PREFILL, contract=contract, transfer=transfer, model="big")
    assert differences(PREFILL, decode) == (
        "dtype: 'float32' != 'bfloat16'",
        "block_size: 16 != 32",
        "model: 'demo' != 'big'",
        "transfer backend: 'fake' != 'nixl'",
    )

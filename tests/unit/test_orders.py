"""What each order of an operator comes to: groups of steps."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster.orders import (
    Add,
    DrainEngine,
    Order,
    Remove,
    Renew,
    RestartEngines,
    ScaleEngines,
    Steps,
    steps_of,
)


def engines(num_prefill: int, num_decode: int) -> Mapping[Role, Sequence[str]]:
    return {
        Role.PREFILL: [f"prefill-{i}" for i in range(num_prefill)],
        Role.DECODE: [f"decode-{i}" for i in range(num_decode)],
    }


def test_a_drained_engine_leaves_or_is_replaced() -> None:
    assert steps_of(DrainEngine("decode-1"), engines(1, 2)) == Steps(((Remove("decode-1"),),))
    replace = DrainEngine("decode-1", restart=True)
    assert steps_of(replace, engines(1, 2)) == Steps(((Renew("decode-1"),),))


@pytest.mark.parametrize("name", ["decode-7", "bootstrap"])
def test_who_is_no_engine_is_refused_with_those_that_are(name: str) -> None:
    allowed = "allowed are prefill-0, decode-0, decode-1"
    with pytest.raises(ConfigError, match=f"worker='{name}': {allowed}"):
        steps_of(DrainEngine(name), engines(1, 2))


def test_scaling_adds_the_lowest_free_numbers_before_the_youngest_leave() -> None:
    present = {Role.PREFILL: ["prefill-0", "prefill-2"], Role.DECODE: ["decode-1", "decode-0"]}
    assert steps_of(ScaleEngines(prefill=4, decode=1), present).plan == (
        (Add("prefill-1"), Add("prefill-3")),
        (Remove("decode-0"),),
    )
    assert steps_of(ScaleEngines(prefill=2), present).plan == ()


def test_a_restart_takes_one_engine_after_the_other() -> None:
    assert steps_of(RestartEngines("all"), engines(2, 2)) == Steps(
        tuple((Renew(name),) for name in ("prefill-0", "prefill-1", "decode-0", "decode-1"))
    )
    assert steps_of(RestartEngines("decode"), engines(1, 2)).plan == (
        (Renew("decode-0"),),
        (Renew("decode-1"),),
    )


def test_the_only_engine_of_a_role_has_its_successor_beside_it_first_if_there_is_a_place() -> None:
    assert steps_of(RestartEngines("all"), engines(1, 2)) == Steps(
        ((Add("prefill-1"),), (Remove("prefill-0"),), (Renew("decode-0"),), (Renew("decode-1"),)),
        ((Remove("prefill-1"),), (Renew("prefill-0"),), (Renew("decode-0"),), (Renew("decode-1"),)),
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"scale","prefill":0}',
        b'{"type":"scale","prefill":100000}',
        b'{"type":"drain","worker":""}',
        b'{"type":"drain","worker":"d","timeout_s":-1}',
        b'{"type":"restart","role":"bootstrap"}',
        b'{"type":"stop"}',
    ],
)
def test_orders_are_bounded(line: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(line, type=Order)

"""Which hosts are left with nobody whose connections could be wanted."""

import pytest

from kv_transfer.severing import host_of, is_deserted


@pytest.mark.parametrize(
    ("endpoint", "others", "deserted"),
    [
        ("tcp://10.0.0.1:7000", ["tcp://10.0.0.2:7000"], True),
        ("tcp://10.0.0.1:7000", ["tcp://10.0.0.2:7000", "tcp://10.0.0.1:7001"], False),
        ("tcp://10.0.0.1:7000", ["tcp://10.0.0.11:7000"], True),
        ("tcp://[fd00::1]:7000", ["tcp://[fd00::1]:7001"], False),
        ("tcp://[fd00::1]:7000", ["tcp://[fd00::2]:7001"], True),
        ("tcp://[fd00::1]:7000", ["tcp://[fd00:0::1]:7001"], False),
        ("tcp://10.0.0.1:7000", ["tcp://head:7100"], True),
        ("tcp://host-a:7000", ["tcp://host-b:7000"], False),  # names: who knows what they mean
    ],
)
def test_a_host_with_another_member_is_not_deserted(
    endpoint: str, others: list[str], deserted: bool
) -> None:
    assert is_deserted(endpoint, others) == deserted


def test_the_host_of_an_endpoint() -> None:
    assert host_of("tcp://10.0.0.1:7000") == "10.0.0.1"
    assert host_of("tcp://[fd00::1]:7000") == "fd00::1"

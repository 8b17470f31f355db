"""No bytes crash a decoder; more of the same by `python -m tests.faults.fuzz`."""

import random

import pytest

from bootstrap import codec
from bootstrap.errors import TransferError
from bootstrap.membership import TransferMetadata
from kv_transfer.backends.process import unpack_blob
from tests.faults.fuzz import fuzz
from tests.faults.random_messages import RandomMessages, message_types


def test_random_messages_of_every_type_are_valid() -> None:
    messages = RandomMessages(random.Random(1))
    for kind in message_types():
        for _ in range(20):
            assert type(codec.decode(messages.frame(kind)).body) is kind


def test_spoiled_frames_are_judged_in_bounded_memory() -> None:
    report = fuzz(seed=20, num_inputs=20_000)
    for decoder in ("codec", "inbox", "blob"):  # else the corpus would be worth nothing
        assert report.outcomes[f"{decoder} accepted"] > 200
        assert report.outcomes[f"{decoder} refused"] > 1000


@pytest.mark.parametrize("opening", [b"\x81\xa1x", b"\x91"], ids=["maps", "arrays"])
def test_connection_data_deeper_than_the_stack_is_refused(opening: bytes) -> None:
    blob = opening * 100_000
    with pytest.raises(TransferError):
        unpack_blob(TransferMetadata("nixl", "shm", "a", 0, 1, blob), "nixl")

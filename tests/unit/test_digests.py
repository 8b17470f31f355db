"""Digests of blocks: one byte, another place, another room or an older epoch, and they differ."""

import threading

import pytest

from kv_transfer.digests import DIGEST_BYTES, Blocks, Digester, block_digest, differing_blocks

R = bytes(range(16))
BLOCK = bytes(range(256)) * 4


def test_equal_bytes_at_the_same_place_have_one_digest() -> None:
    digest = block_digest(BLOCK, R, 3, 5)
    assert digest == block_digest(memoryview(bytearray(BLOCK)), R, 3, 5)
    assert len(digest) == DIGEST_BYTES


@pytest.mark.parametrize("at", [0, 1, 511, 1023])
def test_one_changed_bit_is_seen(at: int) -> None:
    changed = bytearray(BLOCK)
    changed[at] ^= 1
    assert block_digest(changed, R, 3, 5) != block_digest(BLOCK, R, 3, 5)


@pytest.mark.parametrize(
    ("room", "epoch", "index"), [(bytes(16), 3, 5), (R, 2, 5), (R, 3, 4), (R, 5, 3)]
)
def test_right_bytes_of_another_room_epoch_or_place_fail(
    room: bytes, epoch: int, index: int
) -> None:
    assert block_digest(BLOCK, room, epoch, index) != block_digest(BLOCK, R, 3, 5)


def test_differing_blocks_are_named_by_their_place_in_the_prompt() -> None:
    sent = b"".join(bytes([n]) * DIGEST_BYTES for n in range(4))
    landed = bytearray(sent)
    assert differing_blocks(7, sent, bytes(landed)) == ()
    landed[DIGEST_BYTES] ^= 1
    landed[-1] ^= 1
    assert differing_blocks(7, sent, bytes(landed)) == (8, 10)


def test_the_digester_reads_the_pages_it_is_given_in_order() -> None:
    arena = bytearray(BLOCK + BLOCK[::-1] + bytes(1024))
    digester = Digester(memoryview(arena), 1024)
    found: list[bytes] = []
    done = threading.Event()
    digester.submit(Blocks(R, 3, 5, (1, 0)), found.append)
    digester.submit(Blocks(R, 4, 0, (2,)), lambda digests: (found.append(digests), done.set()))
    digester.start()
    assert done.wait(60.0)
    digester.stop()
    first = block_digest(BLOCK[::-1], R, 3, 5) + block_digest(BLOCK, R, 3, 6)
    assert found == [first, block_digest(bytes(1024), R, 4, 0)]
    assert not digester.is_alive


def test_a_digester_that_never_started_stops() -> None:
    Digester(memoryview(bytearray(16)), 16).stop()

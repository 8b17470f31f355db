"""Compares what landed with what was sent, before a handoff record reaches the core.

It runs beside the engine's step: a record that waits for a step and then for its digests would cost the
room a second step. It decides nothing; the core learns of a record and what was found in one event.
"""

from collections.abc import Callable

from bootstrap.identity import Peer
from bootstrap.messages import HandoffRecord
from decode.instructions import HandoffVerified
from engine.core import Received
from kv_transfer.digests import DIGEST_BYTES, Blocks, OnDigests, differing_blocks

Submit = Callable[[Blocks, OnDigests], None]


class HandoffVerifier:
    """Knows the pages that peers may write now. Any thread may call."""

    def __init__(self, submit: Submit, put: Callable[[object], None]) -> None:
        self._submit = submit
        self._put = put
        self._open: dict[bytes, Blocks] = {}

    def opened(self, blocks: Blocks) -> None:
        """A manifest is about to name these pages."""
        self._open[blocks.room] = blocks

    def closed(self, room: bytes) -> None:
        """No record will make the room's pages valid any more."""
        self._open.pop(room, None)

    def check(self, sender: Peer, record: HandoffRecord) -> None:
        """Put the record before the core, with what was found if there is anything to compare."""
        blocks = self._open.get(record.room)
        if blocks is None or not _fits(blocks, record):
            self._put(Received(sender, record))
            return

        def compare(landed: bytes) -> None:
            bad = differing_blocks(blocks.first_block, record.block_digests, landed)
            self._put(HandoffVerified(sender, record, bad))

        self._submit(blocks, compare)


def _fits(blocks: Blocks, record: HandoffRecord) -> bool:
    num_digests = len(record.block_digests)
    return blocks.epoch == record.epoch and num_digests == DIGEST_BYTES * len(blocks.pages) > 0

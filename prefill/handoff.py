"""One room's handoff: its send machine, its record, its blocks' digests, and what its writes took.

A write is over when the transport is done with it and its blocks' digests are known: until both are,
its pages are read.
"""

from dataclasses import dataclass, field

import msgspec

from bootstrap.identity import Peer
from bootstrap.messages import HandoffRecord, Manifest
from kv_transfer.digests import DIGEST_BYTES, Blocks
from kv_transfer.sender import Sender


@dataclass(frozen=True, slots=True)
class Digest:
    """To the digester: what write number `write` reads; answered by `Handoffs.digested`."""

    write: int
    blocks: Blocks


@dataclass(slots=True)
class Handoff:
    """Invariant: `committed` is set exactly while the last record that was sent is to be answered."""

    decode: Peer
    pages: tuple[int, ...]
    sender: Sender
    record: HandoffRecord | None = None
    pending: Manifest | None = None  # not used yet, or never: an end must still answer it
    closed: bool = False
    committed: HandoffRecord | None = None
    resend_at: float = 0.0
    unanswered_since: float = 0.0  # the record that went out last
    moved_at: float = 0.0  # when a write of the room last began or ended
    num_writing: int = 0
    writing_since: float = 0.0
    transfer_s: float = 0.0  # during which at least one write was under way
    num_sent: int = 0  # blocks
    num_resends: int = 0  # how often damaged blocks were asked for
    num_resent: int = 0  # blocks
    digests: dict[int, bytes] = field(default_factory=dict)  # by block
    digesting: set[int] = field(default_factory=set)  # writes whose digests are not known yet
    outcomes: dict[int, str | None] = field(default_factory=dict)  # of writes that wait for them

    def write_began(self, num_blocks: int, now: float) -> None:
        """A write of so many blocks goes to the transport."""
        self.writing_since = now if not self.num_writing else self.writing_since
        self.num_writing += 1
        self.num_sent += num_blocks

    def write_ended(self, now: float) -> None:
        """The transport is done with a write."""
        self.num_writing -= 1
        if not self.num_writing:
            self.transfer_s += now - self.writing_since

    def digest_of(self, room: bytes, write: int, local_pages: tuple[int, ...]) -> Digest | None:
        """What is to be digested for a write; None for blocks that were sent before."""
        first_block = self.pages.index(local_pages[0])
        if first_block in self.digests:
            return None
        self.digesting.add(write)
        return Digest(write, Blocks(room, self.sender.epoch, first_block, local_pages))

    def digested(self, digest: Digest, digests: bytes) -> None:
        """The digests of a write's blocks."""
        self.digesting.discard(digest.write)
        for index in range(len(digest.blocks.pages)):
            start = index * DIGEST_BYTES
            block = digest.blocks.first_block + index
            self.digests[block] = digests[start : start + DIGEST_BYTES]

    def commit(self, epoch: int, block_bytes: int, now: float) -> HandoffRecord:
        """The record as it goes out now; `now` is when it may have to be repeated."""
        assert self.record is not None
        self.committed = msgspec.structs.replace(
            self.record,
            epoch=epoch,
            transfer_s=self.transfer_s,
            transfer_bytes=self.num_sent * block_bytes,
            block_digests=b"".join(digest for _, digest in sorted(self.digests.items())),
            num_resends=self.num_resends,
        )
        self.resend_at = self.unanswered_since = now
        return self.committed

"""Digests of blocks: what shows that the bytes that landed are those that were sent, where they belong.

A block's digest is xxh3 with 64 bits over its bytes, seeded by its room, its epoch and its place in the
prompt, so that right bytes of another room, an older epoch or another place fail too. It is there
against faults, not against an adversary: who can write our memory can send us digests as well.
"""

import queue
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import xxhash

DIGEST_BYTES = 8

_PLACE = struct.Struct("<16sQQ")
OnDigests = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pages of a room at one epoch; they hold the prompt's blocks `first_block ...`."""

    room: bytes
    epoch: int
    first_block: int
    pages: tuple[int, ...]


def block_digest(block: memoryview | bytes, room: bytes, epoch: int, index: int) -> bytes:
    """The digest of block `index` of `room`; `DIGEST_BYTES` long. Other threads run meanwhile."""
    seed = xxhash.xxh3_64_intdigest(_PLACE.pack(room, epoch, index))
    return xxhash.xxh3_64_digest(block, seed)


def differing_blocks(first_block: int, sent: bytes, landed: bytes) -> tuple[int, ...]:
    """Blocks whose digests are not the same; both hold one for each block from `first_block` on."""
    size = DIGEST_BYTES
    return tuple(
        first_block + at // size
        for at in range(0, len(sent), size)
        if sent[at : at + size] != landed[at : at + size]
    )


class Digester:
    """A thread that reads pages of one arena. Every accepted `submit` gets its digests, in order."""

    def __init__(self, arena: memoryview, block_bytes: int) -> None:
        self._arena = arena.cast("B")
        self._block_bytes = block_bytes
        self._jobs: queue.SimpleQueue[tuple[Blocks, OnDigests] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="digester", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was not begun is left undone. Idempotent."""
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, blocks: Blocks, on_digests: OnDigests) -> None:
        """Digest `blocks`; their digests, joined, go to `on_digests` on this thread. Any thread may call.

        Whoever owns the pages keeps their bytes as they are until then, or has no use for the digests.
        """
        self._jobs.put((blocks, on_digests))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            blocks, on_digests = job
            on_digests(b"".join(self._digests(blocks)))

    def _digests(self, blocks: Blocks) -> Sequence[bytes]:
        size = self._block_bytes
        return [
            block_digest(
                self._arena[page * size : (page + 1) * size], blocks.room, blocks.epoch, index
            )
            for index, page in enumerate(blocks.pages, blocks.first_block)
        ]

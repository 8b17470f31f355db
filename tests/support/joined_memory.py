"""KV as plain numbers, and a model whose next token depends on every one that it reads.

The KV of a position is a digest of all tokens up to it, so what a page should hold is known for every
request and block, and one wrong number anywhere gives another token.
"""

from array import array
from collections.abc import Sequence

from bootstrap.sampling import FinishReason, SamplingParams
from engine.core import SwapIn, SwapOut
from engine.step import SampledToken, SequenceChunk
from kv_transfer.digests import Blocks, block_digest

VOCAB_SIZE = 97
GARBAGE = -1
_MASK = (1 << 61) - 1


class PageViolation(AssertionError):
    """Bytes were read or written where they must not be."""


def _mix(digest: int, value: int) -> int:
    return ((digest ^ (value + 0x9E3779B9)) * 0x5851F42D4C957F2D + 1) & _MASK


def kv_of(token_ids: Sequence[int]) -> list[int]:
    """The KV of each position."""
    values: list[int] = []
    for token_id in token_ids:
        values.append(_mix(values[-1] if values else 0, token_id))
    return values


def next_token(values: Sequence[int], params: SamplingParams, position: int) -> int:
    """The model: a function of all KV, the seed and the output position."""
    digest = params.seed
    for value in values:
        digest = _mix(digest, value)
    token_id = _mix(digest, position) % VOCAB_SIZE
    while token_id in params.banned_at(position):
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def solo_run(prompt: Sequence[int], params: SamplingParams) -> tuple[list[int], FinishReason]:
    """What one engine that does both phases would put out."""
    token_ids = list(prompt)
    for position in range(params.max_tokens):
        token_id = next_token(kv_of(token_ids), params, position)
        token_ids.append(token_id)
        finish = params.finish_at(position, token_id)
        if finish is not None:
            return token_ids[len(prompt) :], finish
    raise AssertionError("a request ends at max_tokens")


class Memory:
    """One engine's arena: a list of numbers per page, and copies of retracted rooms."""

    def __init__(self, num_pages: int, block_size: int) -> None:
        self.pages = [[GARBAGE] * block_size for _ in range(num_pages)]
        self.copies: dict[bytes, list[list[int]]] = {}
        self.strict = True  # whether a wrong number is an error at once, or just a wrong token

    def read(self, pages: Sequence[int], num_tokens: int) -> list[int]:
        """The KV of the first `num_tokens` positions."""
        size = len(self.pages[0])
        return [self.pages[pages[i // size]][i % size] for i in range(num_tokens)]

    def run(self, chunk: SequenceChunk, truth: Sequence[int]) -> SampledToken | None:
        """One row of a step; `truth` is what the sequence's KV should be."""
        assert chunk.token_ids, "nothing to compute"
        values, size = self.read(chunk.pages, chunk.start), len(self.pages[0])
        if self.strict and values != list(truth[: chunk.start]):
            raise PageViolation(f"read {values} where {list(truth[: chunk.start])} should be")
        for position, token_id in enumerate(chunk.token_ids, chunk.start):
            values.append(_mix(values[-1] if values else 0, token_id))
            self.pages[chunk.pages[position // size]][position % size] = values[-1]
        if chunk.sample is None:
            return None
        return SampledToken(next_token(values, chunk.sample.params, chunk.sample.position), 0.0)

    def digests(self, blocks: Blocks) -> bytes:
        """Of the pages as they are now."""
        return b"".join(
            block_digest(array("q", self.pages[page]).tobytes(), blocks.room, blocks.epoch, index)
            for index, page in enumerate(blocks.pages, blocks.first_block)
        )

    def carry_out(self, swap: SwapOut | SwapIn) -> None:
        """Keep a copy of a room's pages, or bring it back."""
        if isinstance(swap, SwapOut):
            assert swap.room not in self.copies
            self.copies[swap.room] = [list(self.pages[page]) for page in swap.pages]
            return
        copy = self.copies.pop(swap.room)[swap.first_block :]
        for page, content in zip(swap.pages, copy, strict=True):
            self.pages[page] = content

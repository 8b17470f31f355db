"""Paged attention in plain torch, for the CPU.

Pages are gathered into contiguous keys and values, one `index_select` per layer and group of
sequences, and attended with torch's fused kernel. Query heads that share a KV head are folded into
its batch, so keys and values are never repeated in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention

from bootstrap.errors import LocalMisuse
from engine.step import SequenceChunk
from kv_transfer.layout import KVLayout

_MAX_PADDING = 1.25  # pages gathered for a group of decodes per page it needs


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Neighbouring single-token chunks, padded to the longest context among them."""

    rows: slice
    pages: torch.Tensor  # [2, num_seqs, kv_heads, num_pages]: arena rows of layer 0
    length: int  # longest context
    padding: torch.Tensor | None  # rows of the gathered [..., head_dim] that nobody may see
    mask: torch.Tensor | None  # [num_seqs, 1, 1, length]


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One chunk of several tokens. No mask where it starts its sequence: plain causal attention."""

    rows: slice
    pages: torch.Tensor  # [2, 1, kv_heads, num_pages]
    length: int
    mask: torch.Tensor | None  # [num_tokens, length]


class TorchCpuAttention:
    """Attention over an arena of `layout`; `arena` is that very shape and contiguous."""

    def __init__(self, arena: torch.Tensor, layout: KVLayout, num_heads: int, scale: float) -> None:
        self.layout = layout
        self.scale = scale
        self.group_size = num_heads // layout.num_kv_heads
        # Two views of the same bytes: a slot is one token of one head, a page row one page of one
        # head; both hold either keys or values of one layer.
        self.slots = arena.view(-1, layout.head_dim)
        self.page_rows = arena.view(-1, layout.block_size * layout.head_dim)

    def begin(self, chunks: Sequence[SequenceChunk]) -> "CpuStep":
        """Prepare a step; single-token chunks of similar length next to each other share work.

        Raises LocalMisuse for pages out of the arena or too few for a chunk.
        """
        self._check(chunks)
        groups: list[_Decodes | _Prefill] = []
        row = index = 0
        while index < len(chunks):
            if len(chunks[index].token_ids) > 1:
                groups.append(self._prefill(chunks[index], row))
                row += len(chunks[index].token_ids)
                index += 1
                continue
            end = self._end_of_group(chunks, index)
            groups.append(self._decodes(chunks[index:end], row))
            row, index = row + end - index, end
        return CpuStep(self, torch.from_numpy(self._new_slots(chunks)), groups)

    def _check(self, chunks: Sequence[SequenceChunk]) -> None:
        layout = self.layout
        for chunk in chunks:
            num_pages = layout.blocks_for(chunk.start + len(chunk.token_ids))
            pages = chunk.pages[:num_pages]
            if len(pages) < num_pages or not chunk.token_ids:
                raise LocalMisuse(f"chunk at {chunk.start}: {len(pages)} of {num_pages} pages")
            if min(pages) < 0 or max(pages) >= layout.num_blocks:
                raise LocalMisuse(f"chunk at {chunk.start}: pages beyond {layout.num_blocks}")

    def _end_of_group(self, chunks: Sequence[SequenceChunk], first: int) -> int:
        """How far the decodes from `first` on go together without much padding."""
        needed, longest = 0, 0
        for index in range(first, len(chunks)):
            chunk = chunks[index]
            num_pages = self.layout.blocks_for(chunk.start + 1)
            longest, needed = max(longest, num_pages), needed + num_pages
            num_seqs = index - first + 1
            if len(chunk.token_ids) > 1 or longest * num_seqs > needed * _MAX_PADDING + num_seqs:
                return max(index, first + 1)
        return len(chunks)

    def _prefill(self, chunk: SequenceChunk, row: int) -> _Prefill:
        num_tokens = len(chunk.token_ids)
        length = chunk.start + num_tokens
        mask = None
        if chunk.start:
            mask = torch.full((num_tokens, length), -torch.inf, dtype=self.slots.dtype)
            mask.triu_(chunk.start + 1)
        return _Prefill(slice(row, row + num_tokens), self._pages([chunk], length), length, mask)

    def _decodes(self, chunks: Sequence[SequenceChunk], row: int) -> _Decodes:
        lengths = np.array([chunk.start + 1 for chunk in chunks])
        longest = int(lengths.max())
        pages = self._pages(chunks, longest)
        padding = mask = None
        if (lengths < longest).any():
            unseen = np.arange(pages.shape[-1] * self.layout.block_size) >= lengths[:, None]
            everywhere = np.broadcast_to(unseen[None, :, None], (*pages.shape[:3], unseen.shape[1]))
            padding = torch.from_numpy(np.flatnonzero(everywhere))
            mask = torch.zeros((len(chunks), 1, 1, longest), dtype=self.slots.dtype)
            mask.masked_fill_(torch.from_numpy(unseen[:, None, None, :longest]), -torch.inf)
        return _Decodes(slice(row, row + len(chunks)), pages, longest, padding, mask)

    def _pages(self, chunks: Sequence[SequenceChunk], length: int) -> torch.Tensor:
        """Page rows of layer 0, [2, num_seqs, kv_heads, num_pages]; short ones repeat their first."""
        layout = self.layout
        table = np.empty((len(chunks), layout.blocks_for(length)), dtype=np.int64)
        for row, chunk in zip(table, chunks, strict=True):
            pages = chunk.pages[: layout.blocks_for(chunk.start + len(chunk.token_ids))]
            row[: len(pages)] = pages
            row[len(pages) :] = pages[0]
        heads = np.arange(layout.num_kv_heads)[:, None]
        first = (table[:, None] * layout.num_kv_heads + heads) * (layout.num_layers * 2)
        return torch.from_numpy(np.stack((first, first + 1)))

    def _new_slots(self, chunks: Sequence[SequenceChunk]) -> NDArray[np.int64]:
        """Slots of the new tokens' keys in layer 0, [num_tokens, kv_heads]."""
        layout = self.layout
        per_chunk = []
        for chunk in chunks:
            positions = np.arange(chunk.start, chunk.start + len(chunk.token_ids))
            first_block = chunk.start // layout.block_size
            pages = np.array(chunk.pages[first_block : positions[-1] // layout.block_size + 1])
            page = pages[positions // layout.block_size - first_block][:, None]
            page_row = (page * layout.num_kv_heads + np.arange(layout.num_kv_heads)) * (
                layout.num_layers * 2
            )
            per_chunk.append(page_row * layout.block_size + positions[:, None] % layout.block_size)
        return np.concatenate(per_chunk).astype(np.int64)


class CpuStep:
    """One step's gathers and masks, the same for every layer up to an offset."""

    def __init__(
        self,
        kernel: TorchCpuAttention,
        new_slots: torch.Tensor,
        groups: Sequence[_Decodes | _Prefill],
    ) -> None:
        self._kernel = kernel
        self._new_slots = new_slots.view(-1)
        self._groups = groups
        # One buffer for every gather of the step: fresh memory for each would cost more than the copy.
        most_rows = max(group.pages.numel() for group in groups)
        self._gathered = kernel.page_rows.new_empty((most_rows, kernel.page_rows.shape[1]))

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Copy [num_tokens, kv_heads, head_dim] into the new tokens' slots."""
        block_size, slots = self._kernel.layout.block_size, self._kernel.slots
        key_slots = self._new_slots + 2 * layer * block_size
        slots.index_copy_(0, key_slots, key.reshape(-1, key.shape[-1]))
        slots.index_copy_(0, key_slots + block_size, value.reshape(-1, value.shape[-1]))

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """[num_tokens, heads, head_dim], after `write` of the same layer."""
        out = torch.empty_like(query)
        for group in self._groups:
            key, value = self._gather(group, layer)
            rows = query[group.rows]
            if isinstance(group, _Decodes):
                out[group.rows] = self._decode(group, rows, key, value)
            else:
                out[group.rows] = self._prefill(group, rows, key, value)
        return out

    def _gather(self, group: _Decodes | _Prefill, layer: int) -> torch.Tensor:
        """Keys and values, [2, num_seqs, kv_heads, length, head_dim]."""
        pages = group.pages
        gathered = self._gathered[: pages.numel()]
        rows = (pages + 2 * layer).view(-1)
        torch.index_select(self._kernel.page_rows, 0, rows, out=gathered)
        gathered = gathered.view(-1, self._kernel.layout.head_dim)
        if isinstance(group, _Decodes) and group.padding is not None:
            # Foreign bytes may be NaN, which no mask removes from a product.
            gathered.index_fill_(0, group.padding, 0)
        shape = (*pages.shape[:3], -1, gathered.shape[-1])
        return gathered.view(shape)[:, :, :, : group.length]

    def _decode(
        self, group: _Decodes, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """The heads that share a KV head stand where the kernel expects query positions."""
        num_seqs, num_heads, head_dim = query.shape
        grouped = query.view(num_seqs, -1, self._kernel.group_size, head_dim)
        out = scaled_dot_product_attention(
            grouped, key, value, attn_mask=group.mask, scale=self._kernel.scale
        )
        return out.reshape(num_seqs, num_heads, head_dim)

    def _prefill(
        self, group: _Prefill, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """KV heads are the batch, and the heads that share one see it through a stride of zero."""
        num_tokens, num_heads, head_dim = query.shape
        group_size = self._kernel.group_size
        grouped = query.view(num_tokens, -1, group_size, head_dim).permute(1, 2, 0, 3)
        out = scaled_dot_product_attention(
            grouped,
            key[0][:, None].expand(-1, group_size, -1, -1),  # [kv_heads, group, length, head_dim]
            value[0][:, None].expand(-1, group_size, -1, -1),
            attn_mask=group.mask,
            is_causal=group.mask is None,
            scale=self._kernel.scale,
        )
        return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)

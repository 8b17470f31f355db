"""Pages of retracted requests, kept outside the arena until there is room for them again."""

import torch

from engine.core import SwapIn, SwapOut


class SwapSpace:
    """One exact copy per retracted room; a room comes back with the very bytes that it left with."""

    def __init__(self, arena: torch.Tensor) -> None:
        self._arena = arena  # [num_blocks, kv_heads, num_layers, 2, block_size, head_dim]
        self._copies: dict[bytes, torch.Tensor] = {}

    def carry_out(self, swap: SwapOut | SwapIn) -> None:
        """Copy pages out of the arena, or back into it."""
        pages = torch.tensor(swap.pages, dtype=torch.long)
        if isinstance(swap, SwapOut):
            self._copies[swap.room] = self._arena[pages]
        else:
            copy = self._copies.pop(swap.room)
            self._arena[pages] = copy[swap.first_block :]

    def drop(self, room: bytes) -> None:
        """Forget a room's copy, if there is one."""
        self._copies.pop(room, None)

    def __len__(self) -> int:
        return len(self._copies)

"""What the transformer asks of an attention kernel. The arena and its pages are the kernel's alone."""

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.step import SequenceChunk


class StepAttention(Protocol):
    """One step's attention: every layer writes its new keys and values, then attends.

    Rows are the tokens of the step's chunks, chunk after chunk.
    """

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put [num_tokens, kv_heads, head_dim] keys and values into the chunks' own slots."""
        ...

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """[num_tokens, heads, head_dim] in and out; a token sees its context and itself."""
        ...


class AttentionKernel(Protocol):
    """Attention over one arena."""

    def begin(self, chunks: Sequence[SequenceChunk]) -> StepAttention:
        """Prepare what all layers of a step share."""
        ...

"""Runs steps: a mix of prompt chunks and decode tokens of many sequences as one flat batch."""

from collections.abc import Sequence

import torch

from engine.kernels.torch_cpu import TorchCpuAttention
from engine.loader import LoadedModel
from engine.sampler import sample
from engine.step import NumericalFault, SampledToken, SequenceChunk
from engine.transformer import Transformer
from kv_transfer.layout import KVLayout


class ModelRunner:
    """Reads and writes only the pages that a step's chunks name; holds no state between steps."""

    def __init__(self, loaded: LoadedModel, layout: KVLayout, arena: torch.Tensor) -> None:
        config = loaded.config
        self._transformer = Transformer(config, loaded.weights)
        self._kernel = TorchCpuAttention(arena, layout, config.num_heads, config.attention_scale)

    def step(self, chunks: Sequence[SequenceChunk]) -> list[SampledToken | NumericalFault | None]:
        """One result per chunk, None where it does not sample.

        Raises LocalMisuse for chunks whose pages do not cover them.
        """
        if not chunks:
            return []
        order = sorted(range(len(chunks)), key=lambda i: _batch_key(chunks[i]))
        ordered = [chunks[i] for i in order]
        logits = self._logits(ordered)
        wanted = [chunk.sample for chunk in ordered if chunk.sample is not None]
        outcomes = iter(sample(logits, wanted))
        results: list[SampledToken | NumericalFault | None] = [None] * len(chunks)
        for i in order:
            if chunks[i].sample is not None:
                results[i] = next(outcomes)
        return results

    def _logits(self, chunks: Sequence[SequenceChunk]) -> torch.Tensor:
        """Logits after the last token of each chunk that samples, [num_sampling, vocab]."""
        token_ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        for chunk in chunks:
            token_ids.extend(chunk.token_ids)
            positions.extend(range(chunk.start, chunk.start + len(chunk.token_ids)))
            if chunk.sample is not None:
                logit_rows.append(len(token_ids) - 1)
        return self._transformer.forward(
            torch.tensor(token_ids),
            torch.tensor(positions),
            self._kernel.begin(chunks),
            torch.tensor(logit_rows, dtype=torch.long),
        )


def _batch_key(chunk: SequenceChunk) -> tuple[bool, int]:
    """Decodes first, similar contexts next to each other, for the kernel to share their work."""
    return len(chunk.token_ids) > 1, chunk.start

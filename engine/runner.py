"""Runs steps: a mix of prompt chunks and decode tokens of many sequences as one flat batch."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from engine.core import StepResult
from engine.kernels.attention import AttentionKernel
from engine.kernels.torch_cpu import TorchCpuAttention
from engine.loader import LoadedModel
from engine.sampler import sample
from engine.scoring import score
from engine.step import NumericalFault, RowFault, SampledToken, ScoredPrompt, SequenceChunk
from engine.transformer import Transformer
from kv_transfer.layout import KVLayout


class ModelRunner:
    """Reads and writes only the pages that a step's chunks name; holds no state between steps."""

    def __init__(self, loaded: LoadedModel, layout: KVLayout, arena: torch.Tensor) -> None:
        self.config = config = loaded.config
        self._transformer = Transformer(config, loaded.weights)
        self._kernel: AttentionKernel = TorchCpuAttention(
            arena, layout, config.num_heads, config.attention_scale
        )

    def use(self, loaded: LoadedModel) -> None:
        """Other weights of the same shape; KV of the earlier ones means nothing to them."""
        self.config = loaded.config
        self._transformer = Transformer(loaded.config, loaded.weights)

    def step(self, chunks: Sequence[SequenceChunk]) -> list[StepResult]:
        """One result per chunk, None where it neither samples nor scores.

        Raises LocalMisuse for chunks whose pages do not cover them.
        """
        if not chunks:
            return []
        order = sorted(range(len(chunks)), key=lambda i: _batch_key(chunks[i]))
        ordered = [chunks[i] for i in order]
        hidden = self._hidden(ordered)
        ends = list(accumulate(len(chunk.token_ids) for chunk in ordered))
        wanted = [chunk.sample for chunk in ordered if chunk.sample is not None]
        rows = [end - 1 for end, c in zip(ends, ordered, strict=True) if c.sample is not None]
        logits = self._transformer.logits(hidden[torch.tensor(rows, dtype=torch.long)])
        outcomes = iter(sample(logits, wanted))
        results: list[StepResult] = [None] * len(chunks)
        for i, end, chunk in zip(order, ends, ordered, strict=True):
            outcome = None if chunk.sample is None else next(outcomes)
            own = hidden[end - len(chunk.token_ids) : end]
            results[i] = self._scored(own, chunk, outcome) if chunk.scored_token_ids else outcome
        return results

    def _hidden(self, chunks: Sequence[SequenceChunk]) -> torch.Tensor:
        """Last hidden states of all the chunks' tokens, [num_tokens, hidden]."""
        token_ids: list[int] = []
        positions: list[int] = []
        for chunk in chunks:
            token_ids.extend(chunk.token_ids)
            positions.extend(range(chunk.start, chunk.start + len(chunk.token_ids)))
        return self._transformer.forward(
            torch.tensor(token_ids), torch.tensor(positions), self._kernel.begin(chunks)
        )

    def _scored(
        self, hidden: torch.Tensor, chunk: SequenceChunk, outcome: SampledToken | RowFault | None
    ) -> StepResult:
        """The chunk's outcome with its prompt tokens' log probabilities."""
        scored = score(
            hidden, chunk.scored_token_ids, chunk.num_prompt_logprobs, self._transformer.logits
        )
        if scored is None:
            return NumericalFault("the prompt's logits hold NaN or infinity")
        if outcome is None:
            return ScoredPrompt(scored)
        return (
            replace(outcome, prompt_logprobs=scored)
            if isinstance(outcome, SampledToken)
            else outcome
        )


def _batch_key(chunk: SequenceChunk) -> tuple[bool, int]:
    """Decodes first, similar contexts next to each other, for the kernel to share their work."""
    return len(chunk.token_ids) > 1, chunk.start

"""One engine that does both phases in one process: the oracle for disaggregation, and its baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from bootstrap.errors import PdserveError
from bootstrap.sampling import SamplingParams
from engine.arena import torch_dtype
from engine.contract import layout_for
from engine.loader import LoadedModel
from engine.runner import ModelRunner
from engine.step import NumericalFault, SampleAt, SampledToken, SequenceChunk


@dataclass(slots=True)
class _Sequence:
    """One request: its tokens so far, how many of them have KV, and pages for all it may need."""

    token_ids: list[int]
    params: SamplingParams
    pages: range
    num_computed: int = 0
    output: list[SampledToken] = field(default_factory=list)
    finished: bool = False

    def next_chunk(self, max_tokens: int) -> SequenceChunk:
        start = self.num_computed
        token_ids = self.token_ids[start : start + max_tokens]
        at = SampleAt(self.params, len(self.output), self.token_ids)
        is_last = start + len(token_ids) == len(self.token_ids)
        return SequenceChunk(token_ids, start, self.pages, at if is_last else None)

    def take(self, chunk: SequenceChunk, result: SampledToken | NumericalFault | None) -> None:
        self.num_computed += len(chunk.token_ids)
        if isinstance(result, NumericalFault):
            raise PdserveError(result.detail)
        if result is not None:
            self.finished = self.params.finish_at(len(self.output), result.token_id) is not None
            self.output.append(result)
            self.token_ids.append(result.token_id)


class SoloEngine:
    """Runs requests to their end, all together; keeps nothing between calls."""

    def __init__(self, loaded: LoadedModel, block_size: int = 16) -> None:
        self._loaded = loaded
        self._block_size = block_size

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        chunk_size: int,
    ) -> list[list[int]]:
        """Output ids of each prompt, with the one that finished it; see `generate_tokens`."""
        outputs = self.generate_tokens(prompts, params, chunk_size)
        return [[token.token_id for token in output] for output in outputs]

    def generate_tokens(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        chunk_size: int,
    ) -> list[list[SampledToken]]:
        """Tokens with log probabilities. Each step runs every decode and one prompt's next chunk.

        Raises PdserveError when a row's logits are not finite.
        """
        sequences, num_pages = self._sequences(prompts, params)
        layout = layout_for(
            self._loaded.config, self._loaded.dtype, self._block_size, max(num_pages, 1)
        )
        arena = torch.zeros(layout.shape, dtype=torch_dtype(self._loaded.dtype))
        runner = ModelRunner(self._loaded, layout, arena)
        while running := [s for s in sequences if not s.finished]:
            decoding = [s for s in running if s.output]
            prefilling = [s for s in running if not s.output][:1]
            batch = decoding + prefilling
            chunks = [s.next_chunk(chunk_size) for s in batch]
            for sequence, chunk, result in zip(batch, chunks, runner.step(chunks), strict=True):
                sequence.take(chunk, result)
        return [s.output for s in sequences]

    def _sequences(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> tuple[list[_Sequence], int]:
        """Requests with pages for their longest output, and the number of pages in all."""
        sequences, first_page = [], 0
        for prompt, sampling in zip(prompts, params, strict=True):
            num_pages = -(-(len(prompt) + sampling.max_tokens) // self._block_size)
            pages = range(first_page, first_page + num_pages)
            sequences.append(_Sequence(list(prompt), sampling, pages))
            first_page += num_pages
        return sequences, first_page

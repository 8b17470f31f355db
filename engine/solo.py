"""One engine that does both phases in one process: the oracle for disaggregation, and its baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from bootstrap.errors import LocalMisuse, PdserveError
from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams
from engine.arena import torch_dtype
from engine.contract import layout_for
from engine.core import StepResult
from engine.grammar_compiler import Grammar, GrammarCompiler
from engine.loader import LoadedModel
from engine.runner import ModelRunner
from engine.step import (
    RowFault,
    SampleAt,
    SampledToken,
    SampleMemory,
    ScoredPrompt,
    SequenceChunk,
)


@dataclass(slots=True)
class _Sequence:
    """One request: its tokens so far, how many of them have KV, and pages for all it may need."""

    token_ids: list[int]
    params: SamplingParams
    pages: range
    num_scored: int  # the prompt's tokens if they are to be scored, else 0
    num_prompt_logprobs: int
    grammar: Grammar | None
    num_computed: int = 0
    memory: SampleMemory = field(default_factory=SampleMemory)
    scored: list[TokenLogprobs] = field(default_factory=list)
    output: list[SampledToken] = field(default_factory=list)
    finish: FinishReason | None = None

    def next_chunk(self, max_tokens: int) -> SequenceChunk:
        start = self.num_computed
        token_ids = self.token_ids[start : start + max_tokens]
        end = start + len(token_ids)
        position = len(self.output)
        at = SampleAt(self.params, position, self.token_ids, self.memory, self.grammar)
        return SequenceChunk(
            token_ids,
            start,
            self.pages,
            at if end == len(self.token_ids) else None,
            self.num_prompt_logprobs,
            self.token_ids[start + 1 : min(end + 1, self.num_scored)],
        )

    def take(self, chunk: SequenceChunk, result: StepResult) -> None:
        self.num_computed += len(chunk.token_ids)
        if isinstance(result, RowFault):
            raise PdserveError(result.detail)
        if isinstance(result, ScoredPrompt):
            self.scored.extend(result.prompt_logprobs)
        elif result is not None:
            self.scored.extend(result.prompt_logprobs)
            if not self.output:
                result = replace(result, prompt_logprobs=tuple(self.scored))
            self.finish = result.finish_at(self.params, len(self.output))
            self.output.append(result)
            self.token_ids.append(result.token_id)


class SoloEngine:
    """Runs requests to their end, all together; keeps nothing between calls but compiled grammars."""

    def __init__(
        self, loaded: LoadedModel, block_size: int = 16, grammars: GrammarCompiler | None = None
    ) -> None:
        self._loaded = loaded
        self._block_size = block_size
        self._grammars = grammars

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
        num_prompt_logprobs: int | None = None,
    ) -> list[list[SampledToken]]:
        """Tokens with log probabilities. Each step runs every decode and one prompt's next chunk.

        With `num_prompt_logprobs` the first token of each output holds those of its whole prompt, the
        prompt's first token left out. Raises PdserveError for a row that gives no token, BadGrammar.
        """
        sequences, num_pages = self._sequences(prompts, params, num_prompt_logprobs)
        layout = layout_for(
            self._loaded.config, self._loaded.dtype, self._block_size, max(num_pages, 1)
        )
        arena = torch.zeros(layout.shape, dtype=torch_dtype(self._loaded.dtype))
        runner = ModelRunner(self._loaded, layout, arena)
        while running := [s for s in sequences if s.finish is None]:
            decoding = [s for s in running if s.output]
            prefilling = [s for s in running if not s.output][:1]
            batch = decoding + prefilling
            chunks = [s.next_chunk(chunk_size) for s in batch]
            for sequence, chunk, result in zip(batch, chunks, runner.step(chunks), strict=True):
                sequence.take(chunk, result)
        return [s.output for s in sequences]

    def _sequences(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        num_prompt_logprobs: int | None,
    ) -> tuple[list[_Sequence], int]:
        """Requests with pages for their longest output, and the number of pages in all."""
        sequences, first_page = [], 0
        for prompt, sampling in zip(prompts, params, strict=True):
            num_pages = -(-(len(prompt) + sampling.max_tokens) // self._block_size)
            pages = range(first_page, first_page + num_pages)
            num_scored = 0 if num_prompt_logprobs is None else len(prompt)
            grammar = self._grammar(sampling)
            sequences.append(
                _Sequence(
                    list(prompt), sampling, pages, num_scored, num_prompt_logprobs or 0, grammar
                )
            )
            first_page += num_pages
        return sequences, first_page

    def _grammar(self, sampling: SamplingParams) -> Grammar | None:
        if sampling.grammar is None:
            return None
        if self._grammars is None:
            raise LocalMisuse("this engine was made without a grammar compiler")
        return self._grammars.compile(sampling.grammar)

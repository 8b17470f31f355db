"""What a scheduler asks of the model in one step, and what it gets back. No tensors here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from bootstrap.messages import FailureReason, TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams


class SampleMemory:
    """What the sampler keeps of a request between steps, so that no step reads all tokens again.

    It lives as long as its request and is the sampler's alone; an empty one is filled from the tokens.
    """

    __slots__ = ("counts", "grammar_state")

    def __init__(self) -> None:
        self.counts: object = None
        self.grammar_state: object = None


@dataclass(frozen=True, slots=True)
class SampleAt:
    """Sample after a chunk's last token, as the output token at `position` (0-based).

    `token_ids` are all earlier tokens of the request, the last `position` of them output. It is the
    request's own list, not a copy: valid until the step ends. `grammar` is the compiled form of the
    parameters' grammar.
    """

    params: SamplingParams
    position: int
    token_ids: Sequence[int] = ()
    memory: SampleMemory = field(default_factory=SampleMemory)
    grammar: object = None

    @property
    def num_prompt_tokens(self) -> int:
        """Where in `token_ids` the output begins."""
        return len(self.token_ids) - self.position

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """A copy of the prompt."""
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> Sequence[int]:
        """A copy of the output so far."""
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """Tokens of one sequence to run through the model.

    `start` is the position in the sequence of `token_ids[0]`; the KV of all earlier positions lies in
    `pages` already. `pages[i]` is the page of logical block i and covers every token of the chunk.
    `scored_token_ids` are the prompt's tokens after each token of the chunk, where their log
    probabilities with `num_prompt_logprobs` alternatives are wanted.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    sample: SampleAt | None = None
    num_prompt_logprobs: int = 0
    scored_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A sampled token and its log probability under the model's own distribution.

    `top` are the most probable tokens, as many as were asked for. `completes_grammar` when the text
    can only end here. `prompt_logprobs` are the chunk's scored tokens.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    completes_grammar: bool = False
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def finish_at(self, params: SamplingParams, position: int) -> FinishReason | None:
        """Whether this token at output `position` ends the request, and why."""
        if self.completes_grammar:
            return FinishReason.STOP
        return params.finish_at(position, self.token_id)

    def logprobs(self, params: SamplingParams) -> tuple[TokenLogprobs, ...]:
        """What the client gets to see of the log probabilities."""
        return () if params.num_logprobs is None else (TokenLogprobs(self.logprob, self.top),)


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """The scored tokens of a chunk that does not sample."""

    prompt_logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that gives no token: its request must end; its neighbours are untouched."""

    reason: ClassVar[FailureReason] = FailureReason.INTERNAL
    detail: str


@dataclass(frozen=True, slots=True)
class NumericalFault(RowFault):
    """The logits held NaN or infinity, or left no token to choose."""

    reason: ClassVar[FailureReason] = FailureReason.NUMERICAL


@dataclass(frozen=True, slots=True)
class GrammarFault(RowFault):
    """The output contradicts the grammar, or the grammar takes too much work."""

    reason: ClassVar[FailureReason] = FailureReason.BAD_REQUEST

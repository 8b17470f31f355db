"""What a scheduler asks of the model in one step, and what it gets back. No tensors here."""

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleAt:
    """Sample after a chunk's last token, as the output token at `position` (0-based).

    `token_ids` are all earlier tokens of the request, the last `position` of them output. It is the
    request's own list, not a copy: valid until the step ends.
    """

    params: SamplingParams
    position: int
    token_ids: Sequence[int] = ()

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
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    sample: SampleAt | None = None
    num_prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A sampled token and its log probability under the unfiltered distribution."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class NumericalFault:
    """This row's logits held NaN or infinity: its request must end; its neighbours are untouched."""

    detail: str

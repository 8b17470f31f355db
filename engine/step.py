"""What a scheduler asks of the model in one step, and what it gets back. No tensors here."""

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleAt:
    """Sample after a chunk's last token, as the output token at `position` (0-based).

    `prompt_token_ids` and `output_token_ids` are all earlier tokens of the request, split where its
    first output token lies; penalties and grammars look at them.
    """

    params: SamplingParams
    position: int
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()


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

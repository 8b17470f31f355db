"""Which tokens a request has seen and how often, kept as it grows, and the penalties they bring."""

from collections import Counter
from collections.abc import Sequence

import torch

from bootstrap.sampling import SamplingParams


def wants_counts(params: SamplingParams) -> bool:
    """Whether any penalty is asked for."""
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


class TokenCounts:
    """A function of the request's tokens so far; `update` reads only those that are new."""

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt = torch.tensor(sorted(set(prompt_token_ids)), dtype=torch.long)
        self._output: Counter[int] = Counter()
        self._num_output = 0

    def update(self, token_ids: Sequence[int], position: int) -> None:
        """`token_ids` are the request's, of which the last `position` are output."""
        self._output.update(token_ids[len(token_ids) - position + self._num_output :])
        self._num_output = position

    def penalize(self, row: torch.Tensor, params: SamplingParams) -> None:
        """Change one row of logits in place, as vLLM defines it.

        The repetition penalty divides positive logits of seen tokens and multiplies negative ones; then
        each output token loses its count times the frequency penalty, and the presence penalty.
        """
        output = torch.tensor(list(self._output), dtype=torch.long)
        if params.repetition_penalty != 1.0:
            seen = torch.cat((self._prompt, output))
            logits, penalty = row[seen], params.repetition_penalty
            row[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)
        if self._output and (params.frequency_penalty or params.presence_penalty):
            counts = torch.tensor(list(self._output.values()), dtype=row.dtype)
            row[output] -= params.frequency_penalty * counts + params.presence_penalty

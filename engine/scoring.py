"""Log probabilities of tokens that are given, not sampled: a prompt's own."""

from collections.abc import Callable, Sequence

import torch

from bootstrap.messages import TokenLogprobs

_ROWS_AT_ONCE = 32  # of a vocabulary's width each: what a long chunk may take in memory


@torch.inference_mode()
def score(
    hidden: torch.Tensor,
    token_ids: Sequence[int],
    num_logprobs: int,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[TokenLogprobs, ...] | None:
    """The log probability of `token_ids[i]` after `hidden[i]`, with `num_logprobs` alternatives.

    `logits_of` turns [rows, hidden] into [rows, vocab]. None when logits are not finite.
    """
    scored: list[TokenLogprobs] = []
    for first in range(0, len(token_ids), _ROWS_AT_ONCE):
        given = torch.tensor(token_ids[first : first + _ROWS_AT_ONCE])
        logprobs = logits_of(hidden[first : first + len(given)]).log_softmax(dim=-1)
        if not bool(logprobs.sum(dim=-1).isfinite().all()):
            return None
        own = logprobs.gather(1, given[:, None])[:, 0].tolist()
        top = logprobs.topk(min(num_logprobs, logprobs.shape[1]), dim=-1)
        for logprob, ids, values in zip(
            own, top.indices.tolist(), top.values.tolist(), strict=True
        ):
            scored.append(TokenLogprobs(logprob, tuple(zip(ids, values, strict=True))))
    return tuple(scored)

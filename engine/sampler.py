"""From logits to tokens. Every row is decided alone, so its neighbours in a batch cannot matter.

Randomness is a function of (request seed, output position) and of nothing else: another worker that
continues a request draws what the first one would have drawn. A token is found by inverting the
cumulative distribution over tokens in descending order of probability, ties broken by token id.
"""

import hashlib
import math
from collections.abc import Sequence

import torch

from bootstrap.sampling import SamplingParams
from engine.grammar import BadGrammar
from engine.shaping import completes, shaped, shapes
from engine.step import GrammarFault, NumericalFault, RowFault, SampleAt, SampledToken

_FIRST_CANDIDATES = 64  # most probable tokens looked at first; the rest are sorted only if needed
_PERSON = b"pdserve-sample"


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, from blake2b over (seed, position)."""
    message = seed.to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=8, person=_PERSON).digest()
    return float((int.from_bytes(digest, "little") >> 11) / (1 << 53))


@torch.inference_mode()
def sample(logits: torch.Tensor, wanted: Sequence[SampleAt]) -> list[SampledToken | RowFault]:
    """One outcome per row of [len(wanted), vocab], float32 or float64.

    Log probabilities are those of the model's own distribution: before bias, penalties, grammar,
    temperature and filters. A row with NaN or infinity becomes a fault and leaves the others alone.
    """
    if not wanted:
        return []
    # NaN anywhere makes both NaN; `aminmax` and `isfinite().all()` take ten times as long.
    finite = (logits.amin(dim=-1).isfinite() & logits.amax(dim=-1).isfinite()).tolist()
    best = logits.argmax(dim=-1).tolist()
    log_total = torch.logsumexp(logits, dim=-1).tolist()
    outcomes: list[SampledToken | RowFault] = []
    for index, at in enumerate(wanted):
        if not finite[index]:
            outcomes.append(NumericalFault("the logits hold NaN or infinity"))
            continue
        row = logits[index]
        try:
            token_id, complete = _next_token(row, best[index], at)
        except BadGrammar as error:
            outcomes.append(GrammarFault(f"grammar: {error}"))
            continue
        if token_id is None:
            outcomes.append(NumericalFault("every token of the vocabulary is banned"))
            continue
        logprob = min(float(row[token_id]) - log_total[index], 0.0)
        top = _top(row, log_total[index], at.params.num_logprobs or 0)
        outcomes.append(SampledToken(token_id, logprob, top, complete))
    return outcomes


def _next_token(row: torch.Tensor, best: int, at: SampleAt) -> tuple[int | None, bool]:
    """The token, None where none may come, and whether it completes the grammar."""
    if not shapes(at.params, at.position):
        return (best if at.params.temperature == 0 else _choose(row, at)), False
    changed = shaped(row, at)
    if changed is None:
        return None, False
    token_id = _choose(changed, at)
    return token_id, completes(at, token_id)


def _top(row: torch.Tensor, log_total: float, count: int) -> tuple[tuple[int, float], ...]:
    """The most probable tokens, descending, with their log probabilities."""
    if not count:
        return ()
    ids = _most_probable(row, min(count, len(row)))
    pairs = zip(ids.tolist(), row[ids].tolist(), strict=True)
    return tuple((token_id, min(logit - log_total, 0.0)) for token_id, logit in pairs)


def _choose(row: torch.Tensor, at: SampleAt) -> int:
    """A token of the filtered, renormalised distribution of one row, or the greedy one.

    In vLLM's order: temperature, then min_p, then top_k, then top_p of what those leave.
    """
    params = at.params
    if params.temperature == 0:
        return int(row.argmax())
    scaled = (row.double() - row.max()) / params.temperature  # the largest is 0
    if params.min_p > 0:
        scaled[scaled < math.log(params.min_p)] = -torch.inf
    total = None if params.top_k else float(scaled.exp().sum())
    draw = uniform(params.seed, at.position)
    limit = min(params.top_k or len(row), int((scaled > -torch.inf).sum()))
    num_candidates = min(limit, _FIRST_CANDIDATES)
    while True:
        ids = _most_probable(scaled, num_candidates)
        cumulative = scaled[ids].exp().cumsum(0)
        complete = num_candidates == limit
        chosen = _invert(cumulative, total, complete, params, draw)
        if chosen is not None:
            return int(ids[chosen])
        num_candidates = min(limit, num_candidates * 16)


def _invert(
    cumulative: torch.Tensor,
    total: float | None,
    complete: bool,
    params: SamplingParams,
    draw: float,
) -> int | None:
    """Index among the candidates that `draw` falls on; None when it lies beyond them.

    `total` is the mass of all tokens, or None when only a complete set of candidates tells it.
    """
    if total is None:
        if not complete:
            return None
        total = float(cumulative[-1])
    if params.top_p < 1:
        # The nucleus is the smallest set of most probable tokens that holds top_p of the mass.
        nucleus = int(torch.searchsorted(cumulative, params.top_p * total))
        if nucleus >= len(cumulative) and not complete:
            return None
        total = float(cumulative[min(nucleus, len(cumulative) - 1)])
    chosen = int(torch.searchsorted(cumulative, draw * total, right=True))
    if chosen < len(cumulative):
        return chosen
    # Beyond every candidate: more are needed, or rounding put the draw past the last of them.
    return len(cumulative) - 1 if complete else None


def _most_probable(row: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest logits, descending, equal ones by id."""
    if count == len(row):
        return row.argsort(descending=True, stable=True)
    threshold = row.topk(count).values[-1]
    ids = (row >= threshold).nonzero().view(-1)  # ascending, with all that tie at the end
    return ids[row[ids].argsort(descending=True, stable=True)][:count]

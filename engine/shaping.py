"""What a request's own wishes do to its logits before temperature and filters.

In vLLM's order: bias, then penalties; then the grammar and the ids that must not come yet are cut off.
"""

import numpy as np
import torch

from bootstrap.errors import LocalMisuse
from bootstrap.sampling import SamplingParams
from engine.grammar_compiler import Grammar, GrammarState
from engine.step import SampleAt
from engine.token_counts import TokenCounts, wants_counts

_LARGEST = torch.finfo(torch.float32).max  # an extreme penalty's result is still a number


def shapes(params: SamplingParams, position: int) -> bool:
    """Whether anything here changes this row at all."""
    return bool(
        params.logit_bias
        or params.grammar is not None
        or position < params.min_tokens
        or wants_counts(params)
    )


def shaped(row: torch.Tensor, at: SampleAt) -> torch.Tensor | None:
    """A changed copy of one row of logits, or None where it leaves no token to choose.

    A forbidden token's logit is -infinity. Ids beyond the vocabulary have no effect. Where a grammar
    allows nothing but what `min_tokens` holds back, the grammar counts. Raises BadGrammar.
    """
    row, params = row.clone(), at.params
    for token_id, bias in params.logit_bias:
        if token_id < len(row):
            row[token_id] += bias
    if wants_counts(params):
        _counts_of(at).penalize(row, params)
        row.clamp_(-_LARGEST, _LARGEST)
    if params.grammar is not None:
        row.masked_fill_(_forbidden(at, len(row)), -torch.inf)
    banned = [i for i in params.banned_at(at.position) if i < len(row)]
    if banned:
        held_back = row[banned]
        row[banned] = -torch.inf
        if params.grammar is not None and float(row.max()) == -torch.inf:
            row[banned] = held_back
    return None if float(row.max()) == -torch.inf else row


def completes(at: SampleAt, token_id: int) -> bool:
    """Take the sampled token into the grammar's state; whether nothing but an end can follow."""
    if at.params.grammar is None:
        return False
    state = grammar_state(at)
    state.take([token_id])
    return state.complete


def grammar_state(at: SampleAt) -> GrammarState:
    """Where the output stands; whatever the memory has not taken yet is taken now."""
    memory = at.memory
    state = memory.grammar_state
    if not isinstance(state, GrammarState):
        if not isinstance(at.grammar, Grammar):
            raise LocalMisuse("a request with a grammar was stepped before it was compiled")
        state = memory.grammar_state = at.grammar.begin()
    missing = at.position - state.num_tokens
    if missing:
        state.take(list(at.token_ids[len(at.token_ids) - missing :]))
    return state


def _counts_of(at: SampleAt) -> TokenCounts:
    counts = at.memory.counts
    if not isinstance(counts, TokenCounts):
        counts = at.memory.counts = TokenCounts(at.prompt_token_ids)
    counts.update(at.token_ids, at.position)
    return counts


def _forbidden(at: SampleAt, vocab_size: int) -> torch.Tensor:
    """[vocab] bool. A model's vocabulary may be padded beyond its tokenizer's."""
    mask = np.frombuffer(grammar_state(at).mask(), dtype=np.uint8)
    allowed = np.unpackbits(mask, count=vocab_size, bitorder="little")
    return torch.from_numpy(allowed == 0)

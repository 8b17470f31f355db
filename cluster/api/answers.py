"""What answers of both routes have in common."""

from collections.abc import Sequence

from cluster.api.answer_schema import (
    CompletionTokensDetails,
    PromptTokensDetails,
    Usage,
)
from cluster.balancer.asks import Ask
from cluster.balancer.generation import Generation
from cluster.balancer.text import TextToken


def usage_of(ask: Ask, generation: Generation, num_reasoning_tokens: int = 0) -> Usage:
    """Token counts of a call so far; a prompt counts once however often it is sampled.

    What counts as cached of it is what its samples found there, all of them.
    """
    num_prompt = sum(len(prompt) for prompt in ask.prompts)
    num_output = generation.num_output_tokens
    num_cached = sum(
        min(generation.stats_of(first + i).num_cached_tokens for i in range(ask.n))
        for first in range(0, len(ask.prompts) * ask.n, ask.n)
    )
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens),
    )


def ids_if(wanted: bool | None, tokens: Sequence[TextToken]) -> list[int] | None:
    """The ids of tokens, for whoever asked."""
    return [token.token_id for token in tokens] if wanted else None

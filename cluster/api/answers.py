"""What whole answers of both routes have in common."""

from cluster.api.schema import Usage
from cluster.balancer.asks import Ask
from cluster.balancer.generation import Generation


async def collect(generation: Generation) -> list[tuple[str, str]]:
    """Each choice's whole text and finish reason, by index; raises GenerationFailed."""
    pieces: dict[int, list[str]] = {}
    finishes: dict[int, str] = {}
    async for delta in generation.deltas():
        pieces.setdefault(delta.index, []).append(delta.text)
        if delta.finish is not None:
            finishes[delta.index] = delta.finish.value
    return [("".join(pieces[index]), finishes[index]) for index in sorted(pieces)]


def usage_of(ask: Ask, generation: Generation) -> Usage:
    """Token counts of a call; a prompt counts once however often it is sampled."""
    num_prompt = sum(len(prompt) for prompt in ask.prompts)
    num_output = generation.num_output_tokens
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
    )

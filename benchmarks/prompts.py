"""Prompts of an exact length that no two requests share, so that no cache helps."""

import random

# Ids of common words in the demo model's vocabulary; any text does, since only lengths matter.
_LOW, _HIGH = 1000, 20000


def unique_prompt(num_tokens: int, seed: int) -> list[int]:
    """`num_tokens` token ids; different seeds differ from the first token on."""
    return random.Random(seed).choices(range(_LOW, _HIGH), k=num_tokens)

"""One streamed completion, timed chunk by chunk at the client.

The balancer sends each engine's step as it comes, so a chunk is a token, but for tokens whose text waits
for the rest of a character.
"""

import json
import time
from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds after the request was sent at which each chunk of text arrived."""

    token_at: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_at[0]

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Inter-token latencies; the first lies between token 0 and token 1."""
        return tuple(b - a for a, b in zip(self.token_at, self.token_at[1:], strict=False))


def stream_completion(
    client: httpx.Client, model: str, prompt: list[int], num_tokens: int
) -> Timing:
    """Ask for exactly `num_tokens` greedy tokens.

    Raises RuntimeError when the server answers with anything else.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    started = time.perf_counter()
    token_at: list[float] = []
    with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            if chunk["choices"][0]["text"]:
                token_at.append(time.perf_counter() - started)
    if len(token_at) < num_tokens // 2:
        raise RuntimeError(f"{len(token_at)} chunks for {num_tokens} tokens")
    return Timing(tuple(token_at))

"""One request of a load test over HTTP, and what its client saw.

Speaks the OpenAI completions API with token ids as prompts, so that lengths are exact. Knows nothing of
rates or of other requests.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from bootstrap.errors import RemoteFault
from cluster.bench.workload import Offered, token_ids
from cluster.endpoint import MAX_REASON_CHARS, error_message

# Plain words whose tokens make up the prompts: no special token and no broken character among them.
_TEXT = (
    "The river runs past the old mill and under the stone bridge before it meets the sea. "
    "Every morning the baker opens her shop, counts the loaves, and writes down what was sold. "
    "A train leaves at seven with letters, apples, tools and a few travellers who read the news."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client saw; times are seconds on the test's clock, `event_times` those of pieces of text.

    `failure` is empty for an answer that came whole.
    """

    due_at: float
    sent_at: float
    ended_at: float
    event_times: tuple[float, ...]
    num_prompt: int
    num_output: int
    failure: str = ""

    @property
    def ok(self) -> bool:
        """Whether the answer came whole."""
        return not self.failure

    @property
    def ttft_s(self) -> float:
        """From when the request was due to its first token; infinite without one.

        A client that is late with sending does not make the server look faster.
        """
        return self.event_times[0] - self.due_at if self.event_times else float("inf")

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first; 0 with no second one."""
        if self.num_output < 2 or not self.event_times:
            return 0.0
        return (self.event_times[-1] - self.event_times[0]) / (self.num_output - 1)

    @property
    def e2e_s(self) -> float:
        """From when the request was due to its end."""
        return self.ended_at - self.due_at

    @property
    def gaps_s(self) -> list[float]:
        """Times between two pieces of text."""
        return [b - a for a, b in zip(self.event_times, self.event_times[1:], strict=False)]


async def first_model(client: httpx.AsyncClient) -> dict[str, Any]:
    """The first served model's entry in `/v1/models`; raises RemoteFault."""
    data = await _get_json(client, "GET", "/v1/models")
    models = data.get("data") or []
    if not models:
        raise RemoteFault(f"no model at {client.base_url}")
    return dict(models[0])


async def harmless_tokens(client: httpx.AsyncClient, model: str) -> list[int]:
    """Token ids for prompts, from the endpoint's `/tokenize`; raises RemoteFault."""
    body = {"model": model, "prompt": _TEXT, "add_special_tokens": False}
    data = await _get_json(client, "POST", "/tokenize", json=body)
    return sorted({int(token_id) for token_id in data["tokens"]})


async def ask(
    client: httpx.AsyncClient,
    model: str,
    request: Offered,
    vocabulary: Sequence[int],
    clock: Callable[[], float],
    due_at: float,
) -> Seen:
    """Send one request and follow its stream; every failure is part of what was seen."""
    body = {
        "model": model,
        "prompt": token_ids(request, vocabulary),
        "max_tokens": request.num_output,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_at, times, num_output = clock(), [], 0
    failure = "the connection ended before the answer did"
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                failure = f"{response.status_code}: {error_message(text)[:MAX_REASON_CHARS]}"
            else:
                async for data in _events(response):
                    if data == "[DONE]":
                        failure = ""
                        break
                    event = json.loads(data)
                    if "error" in event:
                        failure = f"stream: {error_message(data)[:MAX_REASON_CHARS]}"
                        break
                    if any(choice.get("text") for choice in event["choices"]):
                        times.append(clock())
                    num_output = (event.get("usage") or {}).get("completion_tokens", num_output)
    except httpx.HTTPError as error:
        failure = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS]
    return Seen(due_at, sent_at, clock(), tuple(times), request.num_prompt, num_output, failure)


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


async def _get_json(client: httpx.AsyncClient, method: str, path: str, **body: Any) -> Any:
    try:
        response = await client.request(method, path, **body)
        response.raise_for_status()
        return response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise RemoteFault(f"{client.base_url}: {method} {path}: {error}") from error

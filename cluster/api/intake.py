"""From a validated body to what the balancer is asked: prompts as ids, defaults filled in.

The last client mistakes are found here: a model that is not served, ids beyond the vocabulary, a
conversation that the chat template refuses.
"""

import asyncio
import secrets
from collections.abc import Sequence

from bootstrap.sampling import MAX_STOP_TOKEN_IDS
from cluster.api.errors import ApiError, unknown_model
from cluster.api.schema import ChatCompletionRequest, CompletionRequest, SamplingRequest
from cluster.balancer.asks import Ask
from cluster.balancer.dispatcher import Dispatcher
from engine.chat_template import BadTemplateInput

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
MAX_REQUESTS = 512  # samples of all prompts of one call


async def chat_ask(dispatcher: Dispatcher, body: ChatCompletionRequest, request_id: str) -> Ask:
    """What a conversation asks; raises ApiError."""
    _check_model(dispatcher, body)
    messages = [{"role": message.role, "content": message.text} for message in body.messages]
    try:
        prompt = await dispatcher.text.chat(messages)
    except BadTemplateInput as error:
        raise ApiError(400, str(error), param="messages") from error
    max_tokens = body.max_completion_tokens or body.max_tokens
    return _ask(dispatcher, body, [prompt], request_id, max_tokens, None)


async def completion_ask(dispatcher: Dispatcher, body: CompletionRequest, request_id: str) -> Ask:
    """What prompts ask; raises ApiError."""
    _check_model(dispatcher, body)
    prompts = await _prompt_ids(dispatcher, body)
    default = DEFAULT_COMPLETION_TOKENS
    return _ask(dispatcher, body, prompts, request_id, body.max_tokens, default)


def _check_model(dispatcher: Dispatcher, body: SamplingRequest) -> None:
    if body.model != dispatcher.settings.model_name:
        raise unknown_model(body.model)


async def _prompt_ids(dispatcher: Dispatcher, body: CompletionRequest) -> list[tuple[int, ...]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        prompt = [prompt]
    texts = [p for p in prompt if isinstance(p, str)]
    if texts:
        return list(await asyncio.gather(*(dispatcher.text.encode(text) for text in texts)))
    flat = tuple(p for p in prompt if isinstance(p, int))
    return [flat] if flat else [tuple(p) for p in prompt if isinstance(p, list)]


def _ask(
    dispatcher: Dispatcher,
    body: SamplingRequest,
    prompts: Sequence[tuple[int, ...]],
    request_id: str,
    max_tokens: int | None,
    default_max_tokens: int | None,
) -> Ask:
    n = body.n or 1
    if len(prompts) * n > MAX_REQUESTS:
        raise ApiError(400, f"{len(prompts)} prompts x {n} are over {MAX_REQUESTS}", param="n")
    vocab_size = dispatcher.text.tokenizer.vocab_size
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, "The prompt has no tokens.", param="prompt")
        _check_ids(prompt, vocab_size, "prompt")
    stop_token_ids = tuple(body.stop_token_ids or ())
    if stop_token_ids:
        _check_ids(stop_token_ids, vocab_size, "stop_token_ids")
    if not body.ignore_eos:
        stop_token_ids += dispatcher.text.tokenizer.eos_token_ids
    return Ask(
        request_id=request_id,
        prompts=tuple(prompts),
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        n=n,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        max_tokens=max_tokens,
        default_max_tokens=default_max_tokens,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(dict.fromkeys(stop_token_ids))[:MAX_STOP_TOKEN_IDS],
        stops=body.stops,
    )


def _check_ids(token_ids: tuple[int, ...], vocab_size: int, param: str) -> None:
    largest = max(token_ids)
    if largest >= vocab_size:
        text = f"Token id {largest} is not in the vocabulary of {vocab_size} ids."
        raise ApiError(400, text, param=param)

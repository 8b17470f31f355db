"""From a validated body to what the balancer is asked: prompts as ids, defaults filled in.

The last client mistakes are found here: a model that is not served, ids beyond the vocabulary, a
conversation that the chat template refuses.
"""

import asyncio
import secrets
from collections.abc import Sequence

from bootstrap.sampling import MAX_STOP_TOKEN_IDS, GrammarSpec, SamplingParams
from cluster.api.chat_plan import ChatPlan
from cluster.api.errors import ApiError, unknown_model
from cluster.api.request_ids import CallName
from cluster.api.schema import ChatCompletionRequest, CompletionRequest, SamplingRequest
from cluster.api.structured import check_grammar, requested_grammar
from cluster.balancer.asks import MAX_SEED, Ask
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.text import TextRules
from engine.chat_template import BadTemplateInput

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
MAX_REQUESTS = 512  # samples of all prompts of one call


async def chat_ask(
    dispatcher: Dispatcher, body: ChatCompletionRequest, name: CallName, plan: ChatPlan
) -> Ask:
    """What a conversation asks; raises ApiError."""
    check_model(dispatcher, body.model)
    try:
        prompt = await dispatcher.text.chat(plan.messages, **plan.template)
    except BadTemplateInput as error:
        raise ApiError(400, str(error), param="messages") from error
    await _prepare(dispatcher, [prompt], body, body.num_logprobs)
    grammar = await plan.grammar(dispatcher, prompt)
    return Ask(
        request_id=name.request_id,
        answer_id=name.answer_id,
        tenant=name.tenant,
        traceparent=name.traceparent,
        prompts=(prompt,),
        sampling=_sampling(dispatcher, body, body.num_logprobs, grammar),
        n=body.n or 1,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        rules=_rules(body, keep_special_tokens=plan.keeps_special_tokens(dispatcher)),
        num_prompt_logprobs=body.prompt_logprobs,
    )


async def completion_ask(dispatcher: Dispatcher, body: CompletionRequest, name: CallName) -> Ask:
    """What prompts ask; raises ApiError."""
    check_model(dispatcher, body.model)
    prompts = await _prompt_ids(dispatcher, body)
    await _prepare(dispatcher, prompts, body, body.logprobs)
    grammar, param = requested_grammar(body)
    if grammar is not None:
        await check_grammar(dispatcher.text.grammars, grammar, param)
    echoed = body.logprobs if body.echo else None
    wanted = [num for num in (body.prompt_logprobs, echoed) if num is not None]
    return Ask(
        request_id=name.request_id,
        answer_id=name.answer_id,
        tenant=name.tenant,
        traceparent=name.traceparent,
        prompts=tuple(prompts),
        sampling=_sampling(dispatcher, body, body.logprobs, grammar),
        n=body.n or 1,
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        rules=_rules(body, prompt_only=body.max_tokens == 0),
        num_prompt_logprobs=max(wanted, default=None),
    )


def check_model(dispatcher: Dispatcher, name: str) -> None:
    """Raise ApiError for a model that is not served."""
    if name != dispatcher.settings.model_name:
        raise unknown_model(name)


async def _prompt_ids(dispatcher: Dispatcher, body: CompletionRequest) -> list[tuple[int, ...]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        prompt = [prompt]
    texts = [p for p in prompt if isinstance(p, str)]
    if texts:
        return list(await asyncio.gather(*(dispatcher.text.encode(text) for text in texts)))
    flat = tuple(p for p in prompt if isinstance(p, int))
    return [flat] if flat else [tuple(p) for p in prompt if isinstance(p, list)]


async def _prepare(
    dispatcher: Dispatcher,
    prompts: Sequence[tuple[int, ...]],
    body: SamplingRequest,
    num_logprobs: int | None,
) -> None:
    """Check what the schema cannot know; raises ApiError."""
    n = body.n or 1
    if len(prompts) * n > MAX_REQUESTS:
        raise ApiError(400, f"{len(prompts)} prompts x {n} are over {MAX_REQUESTS}", param="n")
    vocab_size = dispatcher.text.tokenizer.vocab_size
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, "The prompt has no tokens.", param="prompt")
        _check_ids(prompt, vocab_size, "prompt")
    _check_ids(body.stop_token_ids or (), vocab_size, "stop_token_ids")
    _check_ids([token_id for token_id, _ in body.biases], vocab_size, "logit_bias")
    if num_logprobs is not None or body.prompt_logprobs is not None:
        await dispatcher.text.load_bytes()


def _check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        text = f"Token id {largest} is not in the vocabulary of {vocab_size} ids."
        raise ApiError(400, text, param=param)


def _sampling(
    dispatcher: Dispatcher,
    body: SamplingRequest,
    num_logprobs: int | None,
    grammar: GrammarSpec | None,
) -> SamplingParams:
    """The first sample's, but for its limit."""
    stop_token_ids = tuple(body.stop_token_ids or ())
    if not body.ignore_eos:
        stop_token_ids += dispatcher.text.tokenizer.eos_token_ids
    return SamplingParams(
        seed=secrets.randbits(63) if body.seed is None else body.seed & MAX_SEED,
        max_tokens=1,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(dict.fromkeys(stop_token_ids))[:MAX_STOP_TOKEN_IDS],
        min_p=body.min_p or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=body.biases,
        num_logprobs=num_logprobs,
        grammar=grammar,
    )


def _rules(
    body: SamplingRequest, *, keep_special_tokens: bool = False, prompt_only: bool = False
) -> TextRules:
    return TextRules(
        stops=body.stops,
        include_stop=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens and not keep_special_tokens,
        prompt_only=prompt_only,
    )

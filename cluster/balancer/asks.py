"""From what a client asks to the requests that answer it: limits, defaults and seeds.

Pure. Everything that a worker could refuse is refused here, before a worker hears of it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from bootstrap.errors import RemoteFault
from bootstrap.fields import MAX_PROMPT_LOGPROBS
from bootstrap.sampling import SamplingParams
from cluster.balancer.policy import Pool
from cluster.balancer.request import RequestSpec
from cluster.balancer.text import TextRules

MAX_SEED = (1 << 63) - 1
MAX_OUTPUT = 1 << 20  # what a message can carry


class AskRefused(RemoteFault):
    """The client asks for what cannot be. `param` is the field to blame."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One client call. Each prompt is answered `n` times; `max_tokens` None means what fits.

    `sampling` is that of the first sample but for its limit, which is decided here.
    `default_max_tokens` applies when the client names no limit, and shrinks to what fits. 0 tokens are
    for those who want to know about the prompt alone.
    """

    request_id: str  # for logs
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    n: int = 1
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    rules: TextRules = field(default_factory=TextRules)
    num_prompt_logprobs: int | None = None
    answer_id: str = ""  # unique among all calls
    tenant: str = ""  # who asks; everybody where there are no keys
    traceparent: str = ""  # the client's own trace, if any


def requests_for(
    ask: Ask, pools: Sequence[Pool], bootstrap_stop_ids: tuple[int, ...]
) -> list[RequestSpec]:
    """The requests in order of choice index: all samples of the first prompt, then of the second.

    Raises AskRefused for what no pair among `pools` could ever serve.
    """
    limits = [_max_tokens(ask, len(prompt), pools) for prompt in ask.prompts]
    for prompt in ask.prompts:
        _check_scores(ask, len(prompt))
    specs: list[RequestSpec] = []
    alone = len(ask.prompts) * ask.n == 1
    for prompt, max_tokens in zip(ask.prompts, limits, strict=True):
        for sample in range(ask.n):
            seed = sample_seed(ask.sampling.seed, sample)
            sampling = msgspec.structs.replace(ask.sampling, seed=seed, max_tokens=max_tokens)
            name = ask.request_id if alone else f"{ask.request_id}/{len(specs)}"
            specs.append(
                RequestSpec(
                    request_id=name,
                    prompt_token_ids=prompt,
                    sampling=sampling,
                    bootstrap_stop_ids=bootstrap_stop_ids,
                    num_prompt_logprobs=ask.num_prompt_logprobs,
                    answer_id=ask.answer_id,
                    tenant=ask.tenant,
                    traceparent=ask.traceparent,
                )
            )
    return specs


def sample_seed(seed: int, sample: int) -> int:
    """The seed of a prompt's sample: the client's own for the first, unrelated ones for the others.

    It depends on nothing else, so a prompt in a list is answered as it would be alone.
    """
    seed &= MAX_SEED
    if sample == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & MAX_SEED


def _max_tokens(ask: Ask, num_prompt: int, pools: Sequence[Pool]) -> int:
    fits = min(max((pool.max_output(num_prompt) for pool in pools), default=0), MAX_OUTPUT)
    context = max((pool.max_output(0) for pool in pools), default=0)
    wanted = None if ask.max_tokens is None else max(1, ask.max_tokens)
    if fits < 1 or (wanted is not None and wanted > fits):
        asked = f"{num_prompt} in the prompt, {wanted or 1} in the completion"
        raise AskRefused(
            f"This model's maximum context length is {context} tokens. However, you requested"
            f" {num_prompt + (wanted or 1)} tokens ({asked}). Please reduce the length of the"
            " prompt or completion.",
            None,
            "context_length_exceeded",
        )
    if wanted is None:
        wanted = min(fits, ask.default_max_tokens or fits)
    if ask.sampling.min_tokens > wanted:
        raise AskRefused(
            f"min_tokens={ask.sampling.min_tokens} is more than the {wanted} tokens allowed",
            "min_tokens",
        )
    return wanted


def _check_scores(ask: Ask, num_prompt: int) -> None:
    """A prompt's log probabilities come in one message."""
    if ask.num_prompt_logprobs is None:
        return
    most = MAX_PROMPT_LOGPROBS // (ask.num_prompt_logprobs + 1)
    if num_prompt > most:
        raise AskRefused(
            f"With {ask.num_prompt_logprobs} alternatives, log probabilities are limited to prompts"
            f" of {most} tokens, and this one has {num_prompt}.",
            None,
        )

"""Whether a dispatch can be computed here at all, whatever else this engine has to do."""

from bootstrap.fields import MAX_PROMPT_LOGPROBS
from bootstrap.messages import FailureReason, PrefillDispatch
from engine.limits import EngineLimits


def refusal_of(dispatch: PrefillDispatch, limits: EngineLimits) -> tuple[FailureReason, str] | None:
    """Why it never can, or None."""
    left = dispatch.sampling.max_tokens - dispatch.output_offset
    if left < 1 or (left > 1 and dispatch.decode is None):
        return FailureReason.BAD_REQUEST, f"{left} tokens left and no decode engine for them"
    if dispatch.num_prompt_logprobs is not None:
        num = len(dispatch.prompt_token_ids) * (dispatch.num_prompt_logprobs + 1)
        if num > MAX_PROMPT_LOGPROBS:
            return FailureReason.TOO_LARGE, f"{num} prompt logprobs, of {MAX_PROMPT_LOGPROBS}"
    return limits.refusal(dispatch.prompt_token_ids, dispatch.output_offset)

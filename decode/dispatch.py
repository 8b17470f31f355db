"""Whether a dispatch can be decoded here at all, whatever else this engine has to do."""

from bootstrap.messages import DecodeDispatch, FailureReason
from engine.limits import EngineLimits


def refusal_of(dispatch: DecodeDispatch, limits: EngineLimits) -> tuple[FailureReason, str] | None:
    """Why it never can, or None."""
    num_left = dispatch.sampling.max_tokens - dispatch.output_offset
    if num_left < 2:
        return FailureReason.BAD_REQUEST, f"{num_left} tokens left: nothing to decode"
    prompt, offset = dispatch.prompt_token_ids, dispatch.output_offset
    return limits.refusal(prompt, offset, num_left)

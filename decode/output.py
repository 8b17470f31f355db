"""What the balancer gets of each token of the decode leg."""

from bootstrap.messages import RoomTokens
from decode.request import DecodeRequest
from engine.step import SampledToken


def room_tokens(
    request: DecodeRequest, token: SampledToken, position: int, now: float
) -> RoomTokens:
    """The token at `position`; with the last one comes why it is, and what this leg measured."""
    request.max_gap_s = max(request.max_gap_s, now - request.token_at)
    request.token_at = now
    sampling = request.dispatch.sampling
    finish = token.finish_at(sampling, position)
    stats = None if finish is None else request.stats(now)
    logprobs = token.logprobs(sampling)
    return RoomTokens(request.room, position, (token.token_id,), finish, stats, logprobs)

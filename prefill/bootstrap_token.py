"""The bootstrap token's two messages: token 0 to the balancer, the handoff record to the decode engine."""

from bootstrap.messages import HandoffRecord, LegStats, RoomTokens
from bootstrap.sampling import FinishReason
from engine.step import SampledToken
from kv_transfer.prefix import prompt_digest
from prefill.request import PrefillRequest


def finish_of(request: PrefillRequest, token: SampledToken) -> FinishReason | None:
    """Whether the request ends with this token, and why."""
    dispatch = request.dispatch
    finish = token.finish_at(dispatch.sampling, dispatch.output_offset)
    if finish is None and token.token_id in dispatch.bootstrap_stop_ids:
        return FinishReason.STOP
    return finish


def room_tokens(
    request: PrefillRequest, token: SampledToken, finish: FinishReason | None, now: float
) -> RoomTokens:
    """What the balancer gets, with this leg's measurements and the prompt's scores."""
    dispatch = request.dispatch
    stats = LegStats(
        queue_s=request.started_at - request.arrived_at,
        compute_s=now - request.started_at,
        num_cached_tokens=request.num_cached,
    )
    return RoomTokens(
        request.room,
        dispatch.output_offset,
        (token.token_id,),
        finish,
        stats,
        token.logprobs(dispatch.sampling),
        tuple(request.prompt_logprobs),
    )


def record_of(request: PrefillRequest, token_id: int) -> HandoffRecord:
    """What makes the decode engine's pages valid; the transfer fills in the rest."""
    dispatch = request.dispatch
    return HandoffRecord(
        room=request.room,
        epoch=1,  # the transfer puts in the manifest's
        token_id=token_id,
        position=dispatch.output_offset,
        num_prompt_tokens=request.num_tokens,
        prompt_digest=prompt_digest(dispatch.prompt_token_ids),
    )

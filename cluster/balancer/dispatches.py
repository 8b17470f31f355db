"""What a new attempt's legs are told: one message each, both at once."""

from collections.abc import Iterator

from bootstrap.identity import Peer
from bootstrap.messages import DecodeDispatch, PrefillDispatch
from cluster.balancer.attempt import Attempt
from cluster.balancer.request import Request


def dispatches(
    me: Peer, request: Request, attempt: Attempt, now: float
) -> Iterator[tuple[Peer, PrefillDispatch | DecodeDispatch]]:
    """The messages of `attempt`, and to whom they go. `me` is where the answers are to come."""
    spec = request.spec
    prompt = spec.prompt_token_ids + tuple(request.delivered)
    deadline_s = max(0.0, request.deadline_at - now)
    stops_count = len(request.delivered) >= spec.sampling.min_tokens
    yield (
        attempt.prefill.peer,
        PrefillDispatch(
            room=attempt.room,
            request_id=spec.request_id,
            attempt=attempt.number,
            deadline_s=deadline_s,
            reply_to=me,
            decode=None if attempt.decode is None else attempt.decode.peer,
            prompt_token_ids=prompt,
            sampling=spec.sampling,
            output_offset=attempt.output_offset,
            bootstrap_stop_ids=spec.bootstrap_stop_ids if stops_count else (),
            num_prompt_logprobs=None if request.delivered else spec.num_prompt_logprobs,
        ),
    )
    if attempt.decode is not None:
        yield (
            attempt.decode.peer,
            DecodeDispatch(
                room=attempt.room,
                request_id=spec.request_id,
                attempt=attempt.number,
                deadline_s=deadline_s,
                reply_to=me,
                prefill=attempt.prefill.peer,
                prompt_token_ids=prompt,
                sampling=spec.sampling,
                output_offset=attempt.output_offset,
            ),
        )

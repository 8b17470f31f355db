"""Whether a handoff record tells of the very handoff that a room waits for."""

from bootstrap.messages import HandoffRecord
from decode.request import DecodeRequest
from kv_transfer.prefix import prompt_digest


def fault_of(request: DecodeRequest, record: HandoffRecord, vocab_size: int) -> str | None:
    """What of the record contradicts the room's dispatch, or None."""
    dispatch = request.dispatch
    if record.num_prompt_tokens != request.num_prompt_tokens:
        return f"prompt of {record.num_prompt_tokens} tokens, not {request.num_prompt_tokens}"
    if record.prompt_digest != prompt_digest(dispatch.prompt_token_ids):
        return "the prefill engine computed another prompt"
    if record.position != dispatch.output_offset:
        return f"token for position {record.position}, not {dispatch.output_offset}"
    if record.token_id >= vocab_size:
        return f"token id {record.token_id} beyond vocabulary {vocab_size}"
    return None

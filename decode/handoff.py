"""What becomes of a handoff record: accepted, blocks asked for once more, or the room's failure."""

from dataclasses import dataclass

from bootstrap.messages import MAX_RESENDS, BlocksDamaged, HandoffRecord
from decode.request import DecodeRequest
from kv_transfer.digests import DIGEST_BYTES
from kv_transfer.prefix import prompt_digest


@dataclass(frozen=True, slots=True)
class Accepted:
    """The room's pages hold what its prefill engine computed."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The room cannot be decoded from this handoff."""

    detail: str


class HandoffChecks:
    """Invariant: nothing is accepted whose digests were not compared, if the record has digests."""

    def __init__(self, vocab_size: int) -> None:
        self.num_verified = 0  # blocks whose digests were compared
        self.num_damaged = 0  # of these, blocks that differed
        self._vocab_size = vocab_size

    def judge(
        self, request: DecodeRequest, record: HandoffRecord, bad_blocks: tuple[int, ...] | None
    ) -> Accepted | BlocksDamaged | Rejected:
        """`bad_blocks` differ from the record's digests; None when nobody compared."""
        fault = self._fault_of(request, record)
        if fault is not None:
            return Rejected(fault)
        if record.num_resends < request.num_resends:  # sent before it heard what was asked
            return BlocksDamaged(request.room, request.epoch, request.damaged)
        if record.block_digests and bad_blocks is None:
            return Rejected(f"digests of {len(record.block_digests)} bytes do not fit the manifest")
        self.num_verified += len(record.block_digests) // DIGEST_BYTES
        if not bad_blocks:
            return Accepted()
        self.num_damaged += len(bad_blocks)
        if request.num_resends >= MAX_RESENDS:
            return Rejected(f"{len(bad_blocks)} blocks did not land as they were sent, again")
        request.num_resends += 1
        request.damaged = bad_blocks
        return BlocksDamaged(request.room, request.epoch, bad_blocks)

    def counters(self) -> dict[str, int]:
        """For the heartbeat."""
        return {"blocks_verified": self.num_verified, "blocks_damaged": self.num_damaged}

    def _fault_of(self, request: DecodeRequest, record: HandoffRecord) -> str | None:
        """What of the record contradicts the room's dispatch."""
        dispatch = request.dispatch
        if record.num_prompt_tokens != request.num_prompt_tokens:
            return f"prompt of {record.num_prompt_tokens} tokens, not {request.num_prompt_tokens}"
        if record.prompt_digest != prompt_digest(dispatch.prompt_token_ids):
            return "the prefill engine computed another prompt"
        if record.position != dispatch.output_offset:
            return f"token for position {record.position}, not {dispatch.output_offset}"
        if record.token_id >= self._vocab_size:
            return f"token id {record.token_id} beyond vocabulary {self._vocab_size}"
        return None

"""What one engine can take, as its core checks it."""

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.messages import FailureReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits in tokens, blocks and requests. `max_num_batched_tokens` bounds one prefill step.

    `block_bytes` is a block's size in memory, for statistics.
    """

    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_queue: int
    max_num_batched_tokens: int
    prefix_caching: bool = True
    verify_handoff: bool = False
    salvage_lease_s: float = 0.0
    block_bytes: int = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def refusal(
        self, prompt_token_ids: Sequence[int], output_offset: int, num_more_tokens: int = 0
    ) -> tuple[FailureReason, str] | None:
        """Why this engine can never serve the prompt and `num_more_tokens` after it, or None.

        The balancer checks all this before dispatch; an engine trusts nobody.
        """
        num_prompt = len(prompt_token_ids)
        num_tokens = num_prompt + num_more_tokens
        if not output_offset < num_prompt:
            detail = f"prompt of {num_prompt} tokens, of which {output_offset} were output"
            return FailureReason.BAD_REQUEST, detail
        if max(prompt_token_ids) >= self.vocab_size:
            detail = f"token id {max(prompt_token_ids)} beyond vocabulary {self.vocab_size}"
            return FailureReason.BAD_REQUEST, detail
        too_long = max(num_tokens, num_prompt + 1) > self.max_model_len
        if too_long or self.blocks_for(num_tokens) > self.num_blocks:
            detail = f"{num_tokens} tokens exceed {self.max_model_len} or {self.num_blocks} blocks"
            return FailureReason.TOO_LARGE, detail
        return None

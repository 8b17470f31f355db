"""Names for KV blocks by content: a keyed hash chain over token ids, and the prompt digest.

The chain's key is random per process, so nobody outside can construct two prompts that share a name.
"""

import hashlib
import secrets
from array import array
from collections.abc import Sequence

BLOCK_HASH_BYTES = 16


def _packed(token_ids: Sequence[int]) -> bytes:
    return array("I", token_ids).tobytes()


def prompt_digest(token_ids: Sequence[int]) -> bytes:
    """16 bytes that both legs compute over the prompt they were given (blake2b, unkeyed)."""
    return hashlib.blake2b(_packed(token_ids), digest_size=16).digest()


class BlockHasher:
    """Hash chains of full blocks: equal hashes mean equal tokens from the sequence's start on."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._key = secrets.token_bytes(32)

    def extend(self, hashes: list[bytes], token_ids: Sequence[int], num_tokens: int) -> None:
        """Append to `hashes` the names of all full blocks within the first `num_tokens` tokens."""
        size = self._block_size
        while (len(hashes) + 1) * size <= num_tokens:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else b""
            block = _packed(token_ids[start : start + size])
            digest = hashlib.blake2b(
                parent + block, key=self._key, digest_size=BLOCK_HASH_BYTES
            ).digest()
            hashes.append(digest)

    def hashes(self, token_ids: Sequence[int]) -> list[bytes]:
        """Names of all full blocks of `token_ids`."""
        chain: list[bytes] = []
        self.extend(chain, token_ids, len(token_ids))
        return chain

"""The KV contract: what two engines must share before one may read the other's KV bytes."""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import fields

Digest = Annotated[str, Meta(max_length=128)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]

LAYOUT_VERSION = 1  # [num_blocks, kv_heads, num_layers, 2, block_size, head_dim]


class KVContract(Struct, frozen=True):
    """Everything that gives a KV page its meaning. Unequal contracts never pair.

    `rope` and the digests are opaque strings: equality is all that matters.
    """

    model_digest: Digest
    tokenizer_digest: Digest
    dtype: Digest
    block_size: Count
    num_layers: Count
    num_kv_heads: Count
    head_dim: Count
    rope: Annotated[str, Meta(max_length=1024)]
    layout_version: Count = LAYOUT_VERSION

    def differences(self, other: "KVContract") -> tuple[str, ...]:
        """One line `field: mine != theirs` per field that differs; empty when the two may pair."""
        names = [f.name for f in fields(self)]
        pairs = [(n, getattr(self, n), getattr(other, n)) for n in names]
        return tuple(f"{n}: {mine!r} != {theirs!r}" for n, mine, theirs in pairs if mine != theirs)

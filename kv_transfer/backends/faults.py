"""What the fake transport may do wrong, as values. One fault per write, by the write's index."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Delay:
    """The bytes land `num_polls` polls late."""

    num_polls: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The bytes land after `FakeBackend.release(index)`."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The bytes never land and the write never ends, unless its peer is removed."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The bytes land, and the same bytes land again `num_polls` polls later, as from a stale packet."""

    num_polls: int


@dataclass(frozen=True, slots=True)
class Reorder:
    """The bytes land after those of a write begun later."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Only the first `num_bytes` land; `error` None claims success all the same."""

    num_bytes: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Corrupt:
    """All bits of the byte at `offset` into the write's bytes are flipped; success is claimed."""

    offset: int


Fault = Delay | Hold | Drop | Repeat | Reorder | Truncate | Corrupt


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """`by_write[i]` befalls the i-th call of `write` (from 0); other writes are faithful."""

    by_write: Mapping[int, Fault] = field(default_factory=dict)

    def at(self, index: int) -> Fault | None:
        """The fault of write `index`."""
        return self.by_write.get(index)

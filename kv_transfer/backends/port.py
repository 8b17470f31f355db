"""The port: what the transfer layer asks of any transport.

A backend belongs to one thread at a time (the transfer pump after start-up) and never blocks for
longer than a system call, except in `add_peer` and `close`. It moves bytes between two registered
arenas and knows nothing of rooms, epochs or pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bootstrap.membership import TransferMetadata
from kv_transfer.layout import Run

WriteId = int


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """A write that will touch the peer's memory no more. `error` is None when all bytes landed."""

    write_id: WriteId
    error: str | None = None


class TransferBackend(Protocol):
    """One process's end of a transport. All errors are `TransferError`."""

    name: str

    @property
    def transport(self) -> str:
        """What carries the bytes now, for logs and status: `shm`, `tcp`, `rdma`, `memfd`."""
        ...

    @property
    def needs_target_progress(self) -> bool:
        """Whether a target must call `progress` for peers' writes to land."""
        ...

    def allocate(self, num_bytes: int) -> memoryview:
        """Writable memory for the arena, page aligned and registered; called once per backend.

        It lives until `close`, and no name of it outlives the process.
        """
        ...

    def metadata(self) -> TransferMetadata:
        """What a peer needs to write into our arena; valid after `allocate`."""
        ...

    def add_peer(self, metadata: TransferMetadata) -> None:
        """Connect to `metadata.agent_name`; a repeat is a no-op."""
        ...

    def remove_peer(self, agent_name: str) -> None:
        """Tear the connection down. Unknown: no-op.

        Writes to the peer that are under way end with an error in later polls; once they all have, no
        write of ours reaches that peer.
        """
        ...

    def write(self, agent_name: str, runs: Sequence[Run]) -> WriteId:
        """Begin writing `runs` of our arena into the peer's. At least one run, each of at least one byte.

        Raises TransferError for an unknown peer, a run out of bounds of either arena, a peer whose
        process is known to be gone, or a refusal by the transport.
        """
        ...

    def poll(self) -> list[WriteOutcome]:
        """Outcomes since the last call, each write exactly once, in any order."""
        ...

    def progress(self) -> None:
        """Help peers' writes into our arena along; cheap when there is nothing to do."""
        ...

    def close(self) -> None:
        """Release everything. Idempotent."""
        ...

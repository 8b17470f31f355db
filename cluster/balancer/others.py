"""What other load balancers have given each worker, as far as heartbeats tell.

Pure. It is an estimate, some hundred milliseconds old, and only ranks workers: who has enough to do is
decided by what one's own balancer sent there, so that no balancer starves beside a busier one.
"""

from collections.abc import Mapping, Sequence

from bootstrap.identity import WorkerRef
from bootstrap.membership import WorkerLoad

Loads = Sequence[tuple[WorkerRef, WorkerLoad]]


class Others:
    """`rooms` holds, by worker, the rooms that are not ours. Empty while there is no other balancer:
    what heartbeats and we ourselves have counted a moment apart is then no room of anybody's."""

    def __init__(self) -> None:
        self.present = False
        self.rooms: dict[WorkerRef, int] = {}

    def see(self, present: bool) -> None:
        """Whether any other balancer is a member now."""
        self.present = present
        if not present:
            self.rooms.clear()

    def heard(self, loads: Loads, ours: Mapping[WorkerRef, int]) -> None:
        """Workers' newer loads, and how many rooms we have at each."""
        if self.present:
            for ref, load in loads:
                self.rooms[ref] = max(0, load.num_queued + load.num_running - ours.get(ref, 0))

    def forget(self, ref: WorkerRef) -> None:
        """The worker's life is over."""
        self.rooms.pop(ref, None)

    def added_to(
        self, outstanding: Mapping[WorkerRef, int], num_ours: int
    ) -> Mapping[WorkerRef, int]:
        """Tokens by worker, ours and theirs: a room of theirs counts as one of our `num_ours` does."""
        if not self.rooms:
            return outstanding
        mean = max(1, sum(outstanding.values()) // max(1, num_ours))
        everyone = {**dict.fromkeys(self.rooms, 0), **outstanding}
        return {ref: num + mean * self.rooms.get(ref, 0) for ref, num in everyone.items()}

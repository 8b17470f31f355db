"""The memory of one process's arena, and the bounds check that no transport does for us."""

import ctypes
import mmap
from collections.abc import Sequence

from bootstrap.errors import TransferError
from kv_transfer.layout import Run


class Arena:
    """Private, page-aligned, zeroed memory that has no name and is really there.

    Every page is touched at the start: a host that lacks the memory says so before it serves, and no
    handoff pays for page faults in its target (they made first writes twenty times slower).
    Huge pages double what shared-memory writes reach; a forked child does not inherit the memory,
    because copy-on-write would part it from what the transport registered. The memory is freed with
    the last view of it.
    """

    def __init__(self, num_bytes: int) -> None:
        self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):
            try:
                self._memory.madvise(advice)
            except OSError:  # a kernel built without huge pages: slower, not wrong
                continue
        self._anchor = ctypes.c_char.from_buffer(self._memory)
        ctypes.memset(self.address, 0, num_bytes)
        self.view = memoryview(self._memory)
        self.num_bytes = num_bytes

    @property
    def address(self) -> int:
        """Virtual address of the first byte."""
        return ctypes.addressof(self._anchor)


def check_runs(runs: Sequence[Run], local_bytes: int, remote_bytes: int) -> None:
    """Raises TransferError unless every run lies inside both arenas and moves at least one byte."""
    if not runs:
        raise TransferError("a write needs at least one run")
    for run in runs:
        if (
            run.num_bytes <= 0
            or not 0 <= run.local_offset <= local_bytes - run.num_bytes
            or not 0 <= run.remote_offset <= remote_bytes - run.num_bytes
        ):
            raise TransferError(
                f"{run} is out of bounds: local arena {local_bytes} bytes, remote {remote_bytes}"
            )

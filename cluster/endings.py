"""Lives that are over while their processes may not be gone: a stopped one lives on until it is killed.

Owns the proof that a process writes nothing any more: on this host the kernel's word, on others Ray's
force and the time that it takes. Knows neither actors nor who is told.
"""

from dataclasses import dataclass

from cluster.processes import kill
from kv_transfer.backends.process import ProcessTag, is_gone, is_local

# A raylet kills by force what has not ended 5 s after it was told to
# (`RAY_kill_worker_timeout_milliseconds`); the other half is for the way there and a busy host.
REMOTE_END_S = 10.0


@dataclass(frozen=True, slots=True)
class _Ending:
    process: ProcessTag
    over_at: float


class Endings:
    """At most one per worker, from `begin` until `take_gone` has named it."""

    def __init__(self) -> None:
        self._endings: dict[str, _Ending] = {}

    def __len__(self) -> int:
        return len(self._endings)

    def begin(self, worker_id: str, process: ProcessTag, now: float) -> None:
        """This life is over and Ray was told to kill it. On this host the process is killed here."""
        if is_local(process):
            kill(process.pid, process.started)
        self._endings[worker_id] = _Ending(process, now)

    def take_gone(self, now: float) -> list[str]:
        """The workers whose old processes are gone, each named once."""
        gone = [w for w, ending in self._endings.items() if _gone(ending, now)]
        for worker_id in gone:
            del self._endings[worker_id]
        return gone


def _gone(ending: _Ending, now: float) -> bool:
    if is_local(ending.process):
        return is_gone(ending.process)
    return now - ending.over_at >= REMOTE_END_S

"""A supervisor that soon takes a silent worker for stuck, and notes what it says of the dead."""

from pathlib import Path
from typing import Any

from bootstrap.identity import WorkerRef
from cluster import supervisor_actor
from cluster.supervisor_actor import SupervisorActor
from kv_transfer.backends.process import start_time

STUCK_S = 2.0


class ImpatientSupervisor(SupervisorActor):
    """Writes `evicted-INCARNATION` beside the lives of DummyWorkers: whether the process was gone.

    Patient until `lose_patience`, and again from the next eviction on: sound workers are slow at times.
    """

    def __init__(self, folder: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        patience_s, evict = supervisor_actor.STUCK_S, self._bootstrap.evict

        def note(ref: WorkerRef) -> None:
            pid = int((Path(folder) / ref.incarnation).read_text())
            fact = "gone" if start_time(pid) is None else "alive"
            (Path(folder) / f"evicted-{ref.incarnation}").write_text(fact)
            supervisor_actor.STUCK_S = patience_s
            evict(ref)

        self._bootstrap.evict = note  # type: ignore[method-assign]

    def lose_patience(self) -> None:
        """From now on a worker that is silent for STUCK_S is stuck."""
        supervisor_actor.STUCK_S = STUCK_S

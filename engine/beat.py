"""A file whose age tells from outside when this process last moved, such as to a Kubernetes probe.

Owns the file; what counts as a move is for its caller to know. Nobody is told where no file is asked for.
"""

import os
from pathlib import Path

VARIABLE = "PDSERVE_BEAT_FILE"


class Beat:
    """The file is there from the first `touch` to `end`: before it, the process still starts."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.end()  # one of an earlier process

    @classmethod
    def from_environment(cls) -> "Beat":
        """The file that PDSERVE_BEAT_FILE names, if it names one."""
        name = os.environ.get(VARIABLE)
        return cls(Path(name) if name else None)

    def touch(self) -> None:
        """The process moves."""
        if self._path is not None:
            self._path.touch()

    def end(self) -> None:
        """The process serves no more. Idempotent."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

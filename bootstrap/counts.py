"""Named counters that several threads raise and anyone may read."""

import threading
from collections.abc import Sequence


class Counts:
    """The names are fixed at construction; values only rise."""

    def __init__(self, names: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._values = dict.fromkeys(names, 0)

    def add(self, name: str, by: int = 1) -> int:
        """Raise a counter and return its new value."""
        with self._lock:
            self._values[name] += by
            return self._values[name]

    def read(self) -> dict[str, int]:
        """All values at one moment."""
        with self._lock:
            return dict(self._values)

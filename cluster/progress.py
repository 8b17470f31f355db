"""What `up` shows while it starts: a row per part that is at work, or plain lines without a terminal.

Owns the screen (stderr) until the cluster is ready. Knows nothing of what the parts do.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_REFRESHES_PER_S = 8
_DONE = "[green]✓[/green]"


@dataclass(frozen=True, slots=True)
class _Row:
    stage: str
    fraction: float | None
    done: bool


class Progress:
    """One row per part, in the order in which they first spoke. Thread safe."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._lock = threading.Lock()  # guards the rows
        self._rows: dict[str, _Row] = {}
        self._began_at = time.monotonic()
        self._spinner = Spinner("dots")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the rows for as long as the block runs."""
        if not self._console.is_terminal:
            yield
            return
        live = Live(
            get_renderable=self._table,
            console=self._console,
            refresh_per_second=_REFRESHES_PER_S,
        )
        with live:
            yield

    def say(self, part: str, stage: str, fraction: float | None = None, done: bool = False) -> None:
        """`part` is now at `stage`, `fraction` of it (0 to 1) behind it where that is known."""
        with self._lock:
            before = self._rows.get(part)
            self._rows[part] = _Row(stage, fraction, done)
        if not self._console.is_terminal and (before is None or before.stage != stage):
            elapsed_s = time.monotonic() - self._began_at
            sys.stderr.write(f"{elapsed_s:6.1f}s  {part}: {stage}\n")
            sys.stderr.flush()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        with self._lock:
            rows = list(self._rows.items())
        for part, row in rows:
            share = "" if row.fraction is None else f" {row.fraction:4.0%}"
            table.add_row(_DONE if row.done else self._spinner, part, Text(row.stage + share))
        return table

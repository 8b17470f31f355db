"""How long work tells how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # stage, done, total

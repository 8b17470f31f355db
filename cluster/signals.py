"""What SIGINT, SIGTERM and SIGHUP mean to a command that has much to clean up.

Owns their handlers while a command runs. The first signal asks for an end; a second one insists.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """The user asked for an end. Not an Exception: nothing on the way may take it for a fault."""


class StopSignals:
    """`stopping` turns true at the first signal, and at the second `insisted` does too.

    A signal raises Stopped where the main thread is, but only inside of `raising`: elsewhere, as in
    the middle of Ray's start, an exception at any line would leave things half made.
    """

    def __init__(self) -> None:
        self.raising = False
        self._num_signals = 0
        self._first: int | None = None
        self._came = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Run a library that would take signals for itself, without letting it.

        Ray's handler ends the process wherever it is, also half way through Ray's own start.
        """
        install = signal.signal
        setattr(signal, "signal", lambda signum, handler: signal.getsignal(signum))  # noqa: B010
        try:
            yield
        finally:
            setattr(signal, "signal", install)  # noqa: B010

    @property
    def stopping(self) -> bool:
        """Whether an end was asked for."""
        return self._num_signals > 0

    @property
    def terminated(self) -> bool:
        """Whether the one who asked is a program that has time, and no person at a keyboard."""
        return self._first == signal.SIGTERM

    @property
    def insisted(self) -> bool:
        """Whether it was asked for again: no more time for goodbyes."""
        return self._num_signals > 1

    def wait(self, timeout_s: float) -> bool:
        """Until a signal or the time-out; whether an end was asked for."""
        return self._came.wait(timeout_s)

    def check(self) -> None:
        """Raise Stopped when an end was asked for."""
        if self.stopping:
            raise Stopped

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        self._first = self._first or signum
        self._came.set()
        if self.raising:
            raise Stopped

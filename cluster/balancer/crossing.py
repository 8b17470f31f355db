"""From other threads to the event loop, in batches, and no more than fit."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

MAX_ITEMS = 1 << 16

_T = TypeVar("_T")


class Crossing(Generic[_T]):
    """Items keep their order; the loop is woken once for all that wait. After `close` they drop.

    So do messages that find MAX_ITEMS there: as when a network loses them, requests notice and go on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[list[_T]], None]) -> None:
        """`take` runs on the loop."""
        self._loop = loop
        self._take = take
        self._lock = threading.Lock()
        self._items: deque[_T] = deque()
        self._closed = False
        self.num_dropped = 0

    def put(self, item: _T) -> None:
        """Hand over one item, from any thread."""
        with self._lock:
            if not self._closed:
                self._append(item)

    def offer(self, item: _T) -> None:
        """Hand over one item if there is a place for it."""
        with self._lock:
            if len(self._items) >= MAX_ITEMS:
                self.num_dropped += 1
            elif not self._closed:
                self._append(item)

    def _append(self, item: _T) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._loop.call_soon_threadsafe(self._arrive)

    def close(self) -> None:
        """Drop what comes from now on; the loop may close after it."""
        with self._lock:
            self._closed = True
            self._items.clear()

    def _arrive(self) -> None:
        with self._lock:
            items = list(self._items)
            self._items.clear()
        if items:
            self._take(items)

"""From other threads to the event loop, in batches."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Crossing(Generic[_T]):
    """Items keep their order; the loop is woken once for all that wait. After `close` they drop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[list[_T]], None]) -> None:
        """`take` runs on the loop."""
        self._loop = loop
        self._take = take
        self._lock = threading.Lock()
        self._items: deque[_T] = deque()
        self._closed = False

    def put(self, item: _T) -> None:
        """Hand over one item, from any thread."""
        with self._lock:
            if self._closed:
                return
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

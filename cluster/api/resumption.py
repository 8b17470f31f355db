"""Streams that outlive their connection: a client that lost it reads on where it was.

Every event of such a stream has an id, `<answer>-<position>`. Events are kept in bounded memory, and
for a bounded time once nobody reads. Knows bytes and positions, not what they say.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable

from cluster.api.errors import ApiError

KEEP_S = 60.0
MAX_STREAMS = 256
MAX_BYTES = 1 << 20  # of one stream's events

_EVENT_ID = re.compile(r"(.{1,100})-([0-9]{1,9})")


class ResumableStream:
    """Events `first ...` are kept; older ones were dropped, but never one that a reader waits for.

    There is one reader at a time: a new one takes the place of the last. Runs to its end whether or
    not somebody reads. `changed` is called when readers come and go, and at the end.
    """

    def __init__(
        self, name: str, events: AsyncIterator[bytes], changed: Callable[[], None], max_bytes: int
    ) -> None:
        self.name = name
        self.ended = False
        self.reader: Reader | None = None
        self._changed = changed
        self._max_bytes = max_bytes
        self._kept: deque[bytes] = deque()
        self._first = 0
        self._num_bytes = 0
        self._moved = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(events), name=name)

    def holds(self, position: int) -> bool:
        """Whether a reader can begin at `position`."""
        return self._first <= position <= self._first + len(self._kept)

    def come(self, reader: "Reader") -> None:
        """`reader` takes the place of whoever read before."""
        self.reader = reader
        self._move()
        self._changed()

    def leave(self, reader: "Reader") -> None:
        """`reader` reads no more; a repeat is a no-op."""
        if self.reader is reader:
            self.reader = None
            self._move()
            self._changed()

    async def next_for(self, reader: "Reader") -> bytes | None:
        """The event at the reader's place, once it is there; None when there will be none for it."""
        while self.reader is reader and self.holds(reader.position):
            if reader.position < self._first + len(self._kept):
                event = self._kept[reader.position - self._first]
                reader.position += 1
                self._move()
                return event
            if self.ended:
                return None
            await self._moved.wait()
        return None

    async def _run(self, events: AsyncIterator[bytes]) -> None:
        position = 0
        async for event in events:
            numbered = type(event)(f"id: {self.name}-{position}\n".encode() + event)
            position += 1
            while not self._make_room(len(numbered)):
                await self._moved.wait()
            self._kept.append(numbered)
            self._num_bytes += len(numbered)
            self._move()
        self.ended = True
        self._move()
        self._changed()

    def _make_room(self, num_bytes: int) -> bool:
        """Drop what is old until `num_bytes` more fit, but nothing that is yet to be read."""
        while self._kept and self._num_bytes + num_bytes > self._max_bytes:
            if self.reader is not None and self.reader.position <= self._first:
                return False
            self._num_bytes -= len(self._kept.popleft())
            self._first += 1
        return True

    def _move(self) -> None:
        """Wake everybody who waits for a change."""
        self._moved.set()
        self._moved = asyncio.Event()


class Reader:
    """A client's place in a stream: events before `position` are on their way to it."""

    def __init__(self, stream: ResumableStream, position: int) -> None:
        self.position = position
        self._stream = stream

    async def events(self) -> AsyncIterator[bytes]:
        """Until the stream ends or another reader comes."""
        self._stream.come(self)
        while (event := await self._stream.next_for(self)) is not None:
            yield event

    def leave(self) -> None:
        """The client is gone, or has everything."""
        self._stream.leave(self)


class ResumableStreams:
    """A stream is here while it is read, and `keep_s` after it ended or its last reader left.

    Belongs to the event loop. At most `max_streams` are kept: then those that ended go first, and new
    ones are refused when all still run.
    """

    def __init__(
        self,
        keep_s: float = KEEP_S,
        max_streams: int = MAX_STREAMS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._keep_s = keep_s
        self._max_streams = max_streams
        self._max_bytes = max_bytes
        self._streams: dict[str, ResumableStream] = {}  # oldest first
        self._cancels: dict[str, Callable[[], None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, name: str, events: AsyncIterator[bytes], cancel: Callable[[], None]) -> Reader:
        """Keep a new stream. `cancel` ends the work behind it. Raises ApiError when there is no room."""
        if len(self._streams) >= self._max_streams and not self._make_room():
            cancel()
            raise ApiError(503, "Too many resumable streams are open.", code="overloaded")
        stream = ResumableStream(name, events, lambda: self._changed(name), self._max_bytes)
        self._streams[name] = stream
        self._cancels[name] = cancel
        self._changed(name)
        return Reader(stream, 0)

    def find(self, last_event_id: str) -> Reader:
        """A place right after an event; raises ApiError."""
        match = _EVENT_ID.fullmatch(last_event_id)
        stream = self._streams.get(match[1]) if match else None
        if match is None or stream is None or not stream.holds(int(match[2]) + 1):
            text = "The stream of this Last-Event-ID is not kept, or not any more."
            raise ApiError(404, text, param="Last-Event-ID", code="stream_not_found")
        return Reader(stream, int(match[2]) + 1)

    def _changed(self, name: str) -> None:
        """While nobody reads, time runs in which somebody may come back."""
        if name in self._timers:
            self._timers.pop(name).cancel()
        stream = self._streams.get(name)
        if stream is not None and stream.reader is None:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(self._keep_s, self._forget, name)

    def _make_room(self) -> bool:
        for name, stream in self._streams.items():
            if stream.ended and stream.reader is None:
                self._forget(name)
                return True
        return False

    def _forget(self, name: str) -> None:
        self._timers.pop(name).cancel()
        stream = self._streams.pop(name)
        self._cancels.pop(name)()
        if not stream.ended:
            stream.task.cancel()

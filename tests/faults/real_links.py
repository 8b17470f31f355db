"""Links that can be cut: a TCP relay before each address, which can stall, reset and refuse.

It moves bytes and knows no messages. A stalled link keeps its connections and moves nothing, as a network
does that drops every packet; what was under way comes when the stall ends.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_RST = struct.pack("ii", 1, 0)  # SO_LINGER of no time: a close sends a reset
_CHUNK = 1 << 16


class Link:
    """One address, relayed to `target` while it is open."""

    def __init__(self, links: "Links") -> None:
        self._links = links
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.target: tuple[str, int] | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        """What connects to this link."""
        return f"tcp://127.0.0.1:{self.port}"

    def lead_to(self, endpoint: str) -> None:
        """Relay to `endpoint`, from the next connection on."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.target = host, int(port)

    def stall(self) -> None:
        """Move no byte, either way, until `resume`."""
        self._links.run(self._stall())

    def resume(self) -> None:
        """End a stall or a refusal."""
        self._links.run(self._resume())

    def reset(self) -> None:
        """End every connection at once with a reset."""
        self._links.run(self._reset())

    def refuse(self) -> None:
        """Reset, and take no connection until `resume`."""
        self._links.run(self._refuse())

    # --- on the relay's thread -----------------------------------------------------------------

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stall(self) -> None:
        self._flows.clear()

    async def _resume(self) -> None:
        self._flows.set()
        if self._server is None:
            await self.open()

    async def _reset(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for end in self._ends:
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            end.transport.abort()
        self._ends.clear()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.target is not None
        self._ends.add(writer)  # closed with the link, also while the far end is not there yet
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            self._ends.discard(writer)
            writer.transport.abort()
            return
        self._ends.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.ensure_future(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        self._ends.discard(sink)
        sink.transport.abort()


class Links:
    """All links of a cluster, on one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._links: list[Link] = []

    def __enter__(self) -> "Links":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def new(self) -> Link:
        """A link that leads nowhere yet."""
        link = self.run(self._new())
        self._links.append(link)
        return link

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do `work` on the relay's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _new(self) -> Link:
        link = Link(self)
        await link.open()
        return link

    async def _close(self) -> None:
        for link in self._links:
            await link._refuse()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

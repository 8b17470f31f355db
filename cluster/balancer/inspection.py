"""Asks engines for their ledgers, all at once and for a short time. Belongs to the event loop."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bootstrap.identity import Peer, WorkerRef
from bootstrap.inspection import AskLedger, LedgerReport, RoomReport
from bootstrap.messages import Message

DEADLINE_S = 2.0  # an engine that answers later counts as one that does not
MAX_ROOMS = 1 << 13  # rooms that are read of one engine


@dataclass(frozen=True, slots=True)
class EngineLedger:
    """What one engine said in time: `last` is its latest report, None when it gave none.

    `rooms` are those of all its reports; `complete` when they are all that it has.
    """

    peer: Peer
    took_s: float
    last: LedgerReport | None = None
    rooms: tuple[RoomReport, ...] = ()
    complete: bool = False
    problem: str = ""


@dataclass(slots=True)
class _Asked:
    peer: Peer
    room: bytes | None
    began_at: float = field(default_factory=time.monotonic)
    reports: list[LedgerReport] = field(default_factory=list)

    @property
    def rooms(self) -> tuple[RoomReport, ...]:
        return tuple(room for report in self.reports for room in report.rooms)


class LedgerAsks:
    """Every engine that was asked has one entry when `ask_all` returns, be it that it said nothing."""

    def __init__(self, post: Callable[[Peer, Message], None]) -> None:
        self._post = post
        self._waiting: dict[tuple[bytes, WorkerRef], asyncio.Future[LedgerReport | str]] = {}

    async def ask_all(self, peers: Iterable[Peer], room: bytes | None = None) -> list[EngineLedger]:
        """The ledgers of `peers` in their order, or of one `room` in each of them."""
        return await asyncio.gather(*(self._ask(_Asked(peer, room)) for peer in peers))

    def answered(self, sender: Peer, report: LedgerReport) -> None:
        """An engine's report; one that nobody waits for is dropped."""
        self._settle((report.command, sender.ref), report)

    def left(self, ref: WorkerRef, reason: str) -> None:
        """An engine is gone: it will answer nothing."""
        for key in [key for key in self._waiting if key[1] == ref]:
            self._settle(key, f"it left the cluster: {reason}")

    def _settle(self, key: tuple[bytes, WorkerRef], answer: LedgerReport | str) -> None:
        future = self._waiting.pop(key, None)
        if future is not None and not future.done():
            future.set_result(answer)

    async def _ask(self, asked: _Asked) -> EngineLedger:
        """Page by page until the last one, a fault or the deadline."""
        problem, complete = "", False
        while not problem and not complete:
            answer = await self._page(asked)
            if isinstance(answer, str):
                problem = answer
                break
            asked.reports.append(answer)
            complete = not answer.more
            if answer.more and len(asked.rooms) >= MAX_ROOMS:
                break
        return EngineLedger(
            peer=asked.peer,
            took_s=time.monotonic() - asked.began_at,
            last=asked.reports[-1] if asked.reports else None,
            rooms=asked.rooms,
            complete=complete,
            problem=problem,
        )

    async def _page(self, asked: _Asked) -> LedgerReport | str:
        command = secrets.token_bytes(16)
        key = command, asked.peer.ref
        future: asyncio.Future[LedgerReport | str] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        after = asked.rooms[-1].room if asked.rooms else b""
        try:
            self._post(asked.peer, AskLedger(command, after, asked.room))
            left_s = asked.began_at + DEADLINE_S - time.monotonic()
            return await asyncio.wait_for(future, max(0.0, left_s))
        except asyncio.TimeoutError:
            return f"no answer within {DEADLINE_S:g} s"
        finally:
            self._waiting.pop(key, None)

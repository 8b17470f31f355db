"""Asking engines for their ledgers: pages of rooms, deadlines, and engines that leave."""

import asyncio
from collections.abc import Callable

import pytest

from bootstrap.identity import Peer, WorkerRef
from bootstrap.inspection import AskLedger, LedgerReport, RoomReport
from bootstrap.messages import Message
from cluster.balancer import inspection
from cluster.balancer.inspection import EngineLedger, LedgerAsks

P, D = (Peer(WorkerRef(name, "0" * 16), f"tcp://127.0.0.1:{n}") for n, name in enumerate("pd", 1))
Answer = Callable[[Peer, AskLedger], LedgerReport | None]


def rooms(*numbers: int) -> tuple[RoomReport, ...]:
    return tuple(RoomReport(n.to_bytes(16, "big"), "queued") for n in numbers)


def report(ask: AskLedger, *numbers: int, more: bool = False) -> LedgerReport:
    return LedgerReport(ask.command, 8, {"free": 8}, 9, rooms(*numbers), more)


def asked(answer: Answer, *, room: bytes | None = None, deadline_s: float = 5.0):
    """What asking P and D gives when `answer` speaks for them."""

    async def run() -> list[EngineLedger]:
        def post(peer: Peer, message: Message) -> None:
            assert isinstance(message, AskLedger)
            said = answer(peer, message)
            if said is not None:
                asks.answered(peer, said)  # at once: it is in time, however short that is

        asks = LedgerAsks(post)
        ledgers = await asks.ask_all([P, D], room)
        assert not asks._waiting
        return ledgers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspection, "DEADLINE_S", deadline_s)
        return asyncio.run(run())


def test_rooms_are_read_page_by_page() -> None:
    def answer(peer: Peer, ask: AskLedger) -> LedgerReport:
        if peer == D:
            return report(ask)
        last = int.from_bytes(ask.after, "big")
        return report(ask, last + 1, last + 2, more=last < 4)

    p, d = asked(answer)
    assert p.rooms == rooms(1, 2, 3, 4, 5, 6)
    assert (p.complete, p.problem, p.peer) == (True, "", P)
    assert (d.rooms, d.complete, d.peer) == ((), True, D)
    assert d.last is not None


def test_one_room_is_asked_of_all() -> None:
    seen = []

    def answer(peer: Peer, ask: AskLedger) -> LedgerReport:
        seen.append(ask.room)
        return report(ask)

    asked(answer, room=b"r" * 16)
    assert seen == [b"r" * 16] * 2


def test_a_silent_engine_costs_the_deadline_and_no_more() -> None:
    p, d = asked(lambda peer, ask: None if peer == P else report(ask, 1), deadline_s=0.05)
    assert (p.last, p.complete, p.problem) == (None, False, "no answer within 0.05 s")
    assert (d.complete, d.problem) == (True, "")


def test_an_engine_that_falls_silent_in_the_middle_is_told_as_far_as_it_came() -> None:
    def answer(peer: Peer, ask: AskLedger) -> LedgerReport | None:
        return None if ask.after else report(ask, 1, more=True)

    p, _ = asked(answer, deadline_s=0.05)
    assert (p.rooms, p.complete) == (rooms(1), False)
    assert p.last is not None
    assert p.problem


def test_reading_ends_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "MAX_ROOMS", 4)

    def answer(peer: Peer, ask: AskLedger) -> LedgerReport:
        last = int.from_bytes(ask.after, "big")
        return report(ask, last + 1, last + 2, more=True)

    p, _ = asked(answer)
    assert (len(p.rooms), p.complete, p.problem) == (4, False, "")


def test_an_engine_that_leaves_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "DEADLINE_S", 300.0)

    async def run() -> list[EngineLedger]:
        posted = asyncio.Event()
        asks = LedgerAsks(lambda peer, message: posted.set())
        asking = asyncio.create_task(asks.ask_all([P]))
        await posted.wait()
        asks.left(P.ref, "evicted")
        return await asyncio.wait_for(asking, 60.0)

    (p,) = asyncio.run(run())
    assert p.problem == "it left the cluster: evicted"


def test_answers_that_nobody_waits_for_are_dropped() -> None:
    asks = LedgerAsks(lambda peer, message: None)
    asks.answered(P, LedgerReport(bytes(16), 1, {"free": 1}, 0))

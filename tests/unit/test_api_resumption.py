"""Streams that a client comes back to: nothing lost, nothing twice, nothing kept for ever."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.api.resumption import Reader, ResumableStreams


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


class Source:
    """Events that a test hands out."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.cancelled = 0
        self.num_taken = 0

    def put(self, *events: bytes | None) -> None:
        for event in events:
            self.queue.put_nowait(event)

    async def events(self) -> AsyncIterator[bytes]:
        while (event := await self.queue.get()) is not None:
            self.num_taken += 1
            yield event

    def cancel(self) -> None:
        self.cancelled += 1
        self.put(None)


async def take(reader: Reader, num: int | None = None) -> list[bytes]:
    got: list[bytes] = []
    async for event in reader.events():
        got.append(event)
        if len(got) == num:
            break
    reader.leave()
    return got


async def settle(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_a_client_reads_on_where_it_was():
    async def work():
        streams, source = ResumableStreams(), Source()
        source.put(b"data: a\n\n", b"data: b\n\n")
        first = await take(streams.open("x-1", source.events(), source.cancel), 2)
        assert first == [b"id: x-1-0\ndata: a\n\n", b"id: x-1-1\ndata: b\n\n"]
        source.put(b"data: c\n\n", None)
        assert await take(streams.find("x-1-0")) == [
            b"id: x-1-1\ndata: b\n\n",
            b"id: x-1-2\ndata: c\n\n",
        ]
        assert await take(streams.find("x-1-2")) == []
        assert source.cancelled == 0

    run(work())


@pytest.mark.parametrize("event_id", ["x-9", "y-0", "x", "", "x-", "x--1", "x-0x", "-0"])
def test_what_is_not_kept_is_not_found(event_id):
    async def work():
        streams, source = ResumableStreams(), Source()
        source.put(b"a", None)
        await take(streams.open("x", source.events(), source.cancel))
        with pytest.raises(ApiError) as caught:
            streams.find(event_id)
        assert (caught.value.status, caught.value.code) == (404, "stream_not_found")

    run(work())


def test_a_new_reader_takes_the_place_of_the_last():
    async def work():
        streams, source = ResumableStreams(), Source()
        source.put(b"a")
        reader = streams.open("x", source.events(), source.cancel)
        old = asyncio.create_task(take(reader))
        await settle(lambda: source.num_taken and reader.position == 1)
        new = asyncio.create_task(take(streams.find("x-0")))
        assert await old == [b"id: x-0\na"]
        source.put(b"b", None)
        assert await new == [b"id: x-1\nb"]

    run(work())


def test_nobody_comes_back_and_the_work_is_cancelled_and_forgotten():
    async def work():
        streams, source = ResumableStreams(keep_s=0.01), Source()
        source.put(b"a")
        await take(streams.open("x", source.events(), source.cancel), 1)
        await settle(lambda: source.cancelled)
        assert len(streams) == 0
        with pytest.raises(ApiError):
            streams.find("x-0")

    run(work())


def test_a_stream_that_nobody_ever_reads_is_forgotten_too():
    async def work():
        streams, source = ResumableStreams(keep_s=0.01), Source()
        streams.open("x", source.events(), source.cancel)
        await settle(lambda: source.cancelled)
        assert len(streams) == 0

    run(work())


def test_time_does_not_run_while_somebody_reads():
    async def work():
        streams, source = ResumableStreams(keep_s=0.01), Source()
        reading = asyncio.create_task(take(streams.open("x", source.events(), source.cancel)))
        await asyncio.sleep(0.05)  # nothing to wait for: nothing may happen
        assert len(streams) == 1
        source.put(b"a", None)
        assert await reading == [b"id: x-0\na"]
        await settle(lambda: len(streams) == 0)

    run(work())


def test_memory_is_bounded_but_a_slow_reader_loses_nothing():
    async def work():
        streams, source = ResumableStreams(max_bytes=1000), Source()
        events = [b"%090d" % i for i in range(100)]
        source.put(*events, None)
        reader = streams.open("x", source.events(), source.cancel)
        got = []
        async for event in reader.events():
            got.append(event.partition(b"\n")[2])
            for _ in range(5):
                await asyncio.sleep(0)
            assert source.num_taken <= len(got) + 12
        assert got == events
        reader.leave()
        with pytest.raises(ApiError):
            streams.find("x-3")
        assert len(await take(streams.find("x-97"))) == 2

    run(work())


def test_without_a_reader_the_oldest_events_are_dropped():
    async def work():
        streams, source = ResumableStreams(max_bytes=1000), Source()
        source.put(b"first")
        await take(streams.open("x", source.events(), source.cancel), 1)
        source.put(*[b"%090d" % i for i in range(100)], None)
        await settle(lambda: source.num_taken == 101)
        with pytest.raises(ApiError):
            streams.find("x-0")
        assert len(await take(streams.find("x-99"))) == 1

    run(work())


def test_when_too_many_are_open_ended_ones_go_first_and_new_ones_are_refused():
    async def work():
        streams = ResumableStreams(max_streams=2)
        sources = [Source() for _ in range(4)]
        opened = [streams.open(f"{i}", sources[i].events(), sources[i].cancel) for i in (0, 1)]
        with pytest.raises(ApiError) as caught:
            streams.open("2", sources[2].events(), sources[2].cancel)
        assert caught.value.status == 503
        assert sources[2].cancelled == 1
        sources[1].put(None)
        assert await take(opened[1]) == []
        streams.open("3", sources[3].events(), sources[3].cancel)
        assert len(streams) == 2
        assert (sources[0].cancelled, sources[1].cancelled) == (0, 1)

    run(work())

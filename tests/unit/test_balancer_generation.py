"""What a client call gets: all choices to their end, or one failure and the rest cancelled."""

import asyncio
import threading

import pytest

from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.crossing import Crossing
from cluster.balancer.generation import Generation, GenerationFailed
from cluster.balancer.instructions import Deliver, Fail, Failure, FailureKind
from cluster.balancer.stats import RequestStats
from cluster.balancer.text import ChoiceText, TextRules

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def generation(count=2, stops=(), interval=1):
    ended = []
    sampling = SamplingParams(seed=0, max_tokens=99)
    made = Generation(
        [ChoiceText(decode, sampling, TextRules(stops=stops)) for _ in range(count)],
        [RequestStats(0.0) for _ in range(count)],
        lambda index, hit: ended.append((index, hit)),
        interval,
    )
    return made, ended


def decode(token_ids):
    return "".join(map(chr, token_ids))


def ids(text):
    return tuple(map(ord, text))


async def collect(made):
    return [(d.index, d.text, d.finish) async for d in made.deltas()]


def test_choices_interleave_and_end_each_once():
    made, ended = generation()
    for index, what in [
        (0, Deliver(ids("a"), None)),
        (1, Deliver(ids("x"), LENGTH)),
        (0, Deliver(ids("b"), STOP)),
    ]:
        made.put(index, what)
    assert asyncio.run(collect(made)) == [(0, "a", None), (1, "x", LENGTH), (0, "b", STOP)]
    assert made.num_output_tokens == 3
    assert ended == []


def test_a_stop_string_ends_its_request_and_what_comes_after_is_ignored():
    made, ended = generation(stops=("b",))
    made.put(0, Deliver(ids("abc"), None))
    made.put(0, Deliver(ids("d"), LENGTH))
    made.put(1, Deliver(ids("b"), LENGTH))
    assert asyncio.run(collect(made)) == [(0, "a", STOP), (1, "", STOP)]
    assert ended == [(0, True)]
    assert made.num_output_tokens == 3


def test_an_interval_joins_deltas_but_delays_neither_the_first_nor_the_last():
    made, _ = generation(1, interval=3)
    for text in "abcdef":
        made.put(0, Deliver(ids(text), None))
    made.put(0, Deliver(ids("g"), LENGTH))
    assert asyncio.run(collect(made)) == [(0, "a", None), (0, "bcd", None), (0, "efg", LENGTH)]


def test_a_joined_delta_has_all_its_tokens():
    made, _ = generation(1, interval=9)
    for text in "abc":
        made.put(0, Deliver(ids(text), LENGTH if text == "c" else None))

    async def tokens():
        return [[t.token_id for t in d.tokens] async for d in made.deltas()]

    assert asyncio.run(tokens()) == [list(ids("a")), list(ids("bc"))]


def test_prompt_scores_come_with_the_first_delta():
    made, _ = generation(1)
    scores = (TokenLogprobs(-1.0),)
    made.put(0, Deliver(ids("a"), None, (), scores))
    made.put(0, Deliver(ids("b"), LENGTH))

    async def prompts():
        return [d.prompt_logprobs async for d in made.deltas()]

    assert asyncio.run(prompts()) == [scores, ()]


def test_one_failure_fails_all_and_cancels_the_rest():
    made, ended = generation(3)
    failure = Failure(FailureKind.INTERNAL, "why")
    made.put(0, Deliver(ids("a"), LENGTH))
    made.put(1, Fail(failure))
    with pytest.raises(GenerationFailed) as caught:
        asyncio.run(collect(made))
    assert caught.value.failure is failure
    assert ended == [(2, False)]


def test_cancel_ends_what_is_open_once():
    made, ended = generation()
    made.cancel()
    made.cancel()
    assert ended == [(0, False), (1, False)]


def test_a_consumer_that_is_cancelled_cancels_its_requests():
    made, ended = generation()

    async def leave_early():
        task = asyncio.create_task(collect(made))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave_early())
    assert ended == [(0, False), (1, False)]


def test_crossing_keeps_the_order_of_each_thread_and_drops_after_close():
    async def cross():
        loop, got, done = asyncio.get_running_loop(), [], asyncio.Event()

        def take(items):
            got.extend(items)
            if len(got) == 2000:
                done.set()

        crossing = Crossing(loop, take)

        def feed(name):
            for i in range(1000):
                crossing.put((name, i))

        threads = [threading.Thread(target=feed, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(done.wait(), 20)
        for thread in threads:
            thread.join()
        crossing.close()
        crossing.put(("late", 0))
        await asyncio.sleep(0)
        return got

    got = asyncio.run(cross())
    for name in "ab":
        assert [i for n, i in got if n == name] == list(range(1000))
    assert len(got) == 2000


def test_a_full_crossing_counts_what_it_drops(monkeypatch):
    monkeypatch.setattr("cluster.balancer.crossing.MAX_ITEMS", 2)

    async def cross():
        got = []
        crossing = Crossing(asyncio.get_running_loop(), got.extend)
        for i in range(5):
            crossing.offer(i)
        await asyncio.sleep(0)
        crossing.offer(5)
        await asyncio.sleep(0)
        return got, crossing.num_dropped

    assert asyncio.run(cross()) == ([0, 1, 5], 3)

"""The balancer's core under more than its workers can do: engines of their own pace, in fake time."""

import random
from collections import deque

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    FailureReason,
    LegFailed,
    Ping,
    Pong,
    PrefillDispatch,
    RoomTokens,
    TokenBatch,
)
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.core import BalancerCore, News, Post
from cluster.balancer.instructions import Deliver, Fail
from cluster.balancer.members import Members
from cluster.balancer.queue import QueueBounds
from cluster.balancer.request import Request, RequestSpec, RetryRules
from tests.support.members import LIMITS, member

STEP_S = 0.1
STEP_TOKENS = 32
ME = Peer(WorkerRef("lb", "f" * 16), "tcp://127.0.0.1:2")


class Prefill:
    """First come, first served, so many tokens a step; a queue that may be full."""

    def __init__(self, peer: Peer, max_queue: int) -> None:
        self.peer, self.max_queue = peer, max_queue
        self.queue: deque[tuple[PrefillDispatch, int]] = deque()
        self.num_idle_steps = 0

    def take(self, message: PrefillDispatch) -> LegFailed | None:
        if len(self.queue) >= self.max_queue:
            return LegFailed(message.room, FailureReason.QUEUE_FULL)
        self.queue.append((message, len(message.prompt_token_ids)))
        return None

    def step(self) -> list[TokenBatch]:
        budget, out = STEP_TOKENS, []
        self.num_idle_steps += not self.queue
        while self.queue and budget:
            message, num_left = self.queue.popleft()
            done = min(budget, num_left)
            budget -= done
            if done < num_left:
                self.queue.appendleft((message, num_left - done))
            else:
                out.append(_batch(message, message.output_offset))
        return out


class Decode:
    """One token a step for each of so many rooms; the others wait for a place."""

    def __init__(self, peer: Peer, max_num_seqs: int) -> None:
        self.peer, self.max_num_seqs = peer, max_num_seqs
        self.rooms: dict[bytes, tuple[DecodeDispatch, int]] = {}
        self.started: set[bytes] = set()

    def take(self, message: DecodeDispatch) -> None:
        self.rooms[message.room] = message, message.output_offset + 1

    def step(self) -> list[TokenBatch]:
        out = []
        ready = [room for room in self.rooms if room in self.started][: self.max_num_seqs]
        for room in ready:
            message, position = self.rooms[room]
            out.append(_batch(message, position))
            if position + 1 == message.sampling.max_tokens:
                del self.rooms[room]
            else:
                self.rooms[room] = message, position + 1
        return out


def _batch(message: PrefillDispatch | DecodeDispatch, position: int) -> TokenBatch:
    is_last = position + 1 == message.sampling.max_tokens
    finish = FinishReason.LENGTH if is_last else None
    return TokenBatch((RoomTokens(message.room, position, (1,), finish),))


class World:
    """Pairs of workers behind a core; who asked, when, and when the first token and the end came."""

    def __init__(
        self, num_pairs: int = 1, bounds: QueueBounds | None = None, *, max_queue: int = 1 << 20
    ) -> None:
        rng = random.Random(0)
        bounds = bounds or QueueBounds(1 << 20, 1 << 30)
        self.bounds = bounds
        self.core = BalancerCore(ME, Members(), lambda: rng.randbytes(16), bounds)
        self.now = 0.0
        limits = msgspec.structs.replace(
            LIMITS, max_num_batched_tokens=STEP_TOKENS, num_blocks=4096, max_model_len=4096
        )
        self.prefills, self.decodes = {}, {}
        for number in range(num_pairs):
            for role in Role.PREFILL, Role.DECODE:
                joined = member(f"{role.value}-{number}", role, limits=limits)
                peer = joined.info.peer
                if role is Role.PREFILL:
                    self.prefills[peer.ref] = Prefill(peer, max_queue)
                else:
                    self.decodes[peer.ref] = Decode(peer, limits.max_num_seqs)
                self.core.joined(joined, 0.0)
        self.asked: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.ended: dict[int, object] = {}
        self.refused: list[int] = []  # their Retry-After

    def ask(self, tenant: str, num_prompt: int, num_output: int = 4, deadline_s: float = 1e6):
        sampling = SamplingParams(seed=0, max_tokens=num_output)
        spec = RequestSpec("r", tuple(range(num_prompt)), sampling, tenant=tenant)
        failure = self.core.refusal([spec], deadline_s)
        if failure is not None:
            assert failure.retry_after_s is not None
            self.refused.append(failure.retry_after_s)
            return None
        key = len(self.asked)
        self.asked[key] = self.now
        request = Request(spec, RetryRules(), self.now + deadline_s, waiting_since=self.now)
        self.core.submit(key, request, self.now)
        self.settle()
        return key

    def settle(self) -> None:
        """Deliver what the core sends until it sends no more."""
        while out := self.core.drain():
            for what in out:
                if isinstance(what, Post):
                    self.deliver(what)
                elif isinstance(what, News):
                    self.note(what)
        num_fresh = len(self.core.admission.queue) - len(self.core.admission.queue._back)
        assert num_fresh <= self.bounds.max_requests

    def deliver(self, post: Post) -> None:
        ref, message = post.peer.ref, post.message
        if ref not in self.prefills and ref not in self.decodes:
            return
        if isinstance(message, PrefillDispatch):
            refusal = self.prefills[ref].take(message)
            if refusal is not None:
                self.core.receive(post.peer, refusal, self.now)
        elif isinstance(message, DecodeDispatch):
            self.decodes[ref].take(message)
        elif isinstance(message, Ping):
            self.core.receive(post.peer, Pong(), self.now)
        elif isinstance(message, AbortRoom):
            for decode in self.decodes.values():
                decode.rooms.pop(message.room, None)
            for prefill in self.prefills.values():
                prefill.queue = deque(q for q in prefill.queue if q[0].room != message.room)

    def note(self, news: News) -> None:
        if isinstance(news.what, Deliver):
            self.first.setdefault(news.key, self.now)
            if news.what.finish is not None:
                self.ended[news.key] = news.what.finish
        elif isinstance(news.what, Fail):
            self.ended[news.key] = news.what.failure.kind

    def step(self) -> None:
        self.now += STEP_S
        for worker in (*self.prefills.values(), *self.decodes.values()):
            for batch in worker.step():
                for decode in self.decodes.values():
                    decode.started.add(batch.rooms[0].room)
                self.core.receive(worker.peer, batch, self.now)
                self.settle()
        self.core.tick(self.now)
        self.settle()
        if self.core.num_waiting < 100:  # it looks at each of them
            self.core.validate()

    def run_out(self, limit_s: float = 10_000) -> None:
        until = self.now + limit_s
        while self.core.num_requests:
            self.step()
            assert self.now < until, "not everybody was served"

    def ttft(self, key: int) -> float:
        return self.first[key] - self.asked[key]


def test_what_is_asked_alone_goes_out_at_once():
    world = World()
    key = world.ask("", 20)
    assert world.core.num_waiting == 0
    world.step()
    assert world.ttft(key) == pytest.approx(STEP_S)


def test_a_worker_gets_two_steps_ahead_and_no_more():
    world = World()
    for _ in range(100):
        world.ask("", 8)
    assert len(next(iter(world.prefills.values())).queue) == 8  # of 8 tokens each: 64


def test_a_worker_never_idles_while_requests_wait():
    world = World(num_pairs=2)
    for index in range(60):
        world.ask("", 5 + 7 * index % 60, num_output=2)
    while world.core.num_waiting:
        idle = [prefill.num_idle_steps for prefill in world.prefills.values()]
        world.step()
        assert idle == [prefill.num_idle_steps for prefill in world.prefills.values()]
    world.run_out()


def test_a_short_prompt_goes_out_beside_large_ones_that_fill_their_places():
    world = World()
    for _ in range(10):
        world.ask("", 2000)
    assert world.core.num_waiting == 8
    world.ask("", 10)
    assert world.core.num_waiting == 8


def test_short_ones_do_not_keep_a_large_one_out():
    world = World()
    for _ in range(200):
        world.ask("", 16, num_output=2)
    large = world.ask("", 100, num_output=2)
    sent = {message.room for message, _ in next(iter(world.prefills.values())).queue}
    assert len(sent) == 5
    assert any(len(m.prompt_token_ids) == 100 for m, _ in next(iter(world.prefills.values())).queue)
    world.run_out()
    assert world.ttft(large) < 2.0


def test_one_keys_flood_does_not_delay_anothers_first_request():
    world = World()
    for _ in range(1000):
        world.ask("flood", 16, num_output=2)
    key = world.ask("light", 16, num_output=2)
    world.run_out()
    assert world.ttft(key) <= 5 * STEP_S
    assert sorted(world.first, key=world.first.__getitem__).index(key) < 12


def test_full_workers_cost_nobody_an_answer():
    world = World(num_pairs=2, max_queue=1)
    keys = [world.ask("", 8) for _ in range(40)]
    world.run_out()
    assert all(world.ended[key] is FinishReason.LENGTH for key in keys)


def test_when_to_come_again_is_about_when_there_is_a_place_again():
    world = World(bounds=QueueBounds(200, 1 << 30))
    while not world.refused:
        world.ask("", 16)
    for _ in range(100):
        world.step()
        while not world.refused or world.ask("", 16) is not None:
            pass
    asked_at, foretold_s = world.now, world.refused[-1]
    waiting = set(world.core.admission.queue.waiting())
    world.run_out()
    drained_s = max(world.first[key] for key in waiting) - asked_at
    assert 0.5 * drained_s <= foretold_s <= 2.0 * drained_s


def test_after_the_flood_nothing_is_left_and_the_next_is_served_at_once():
    world = World(bounds=QueueBounds(50, 1 << 30))
    for _ in range(500):
        world.ask("", 16)
    assert len(world.refused) > 400
    world.run_out()
    assert not world.core.occupancy.outstanding
    assert world.core.num_waiting == 0
    key = world.ask("", 16)
    world.step()
    assert world.ttft(key) == pytest.approx(STEP_S)


ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 150),  # prompt
        st.integers(1, 6),  # output
        st.integers(0, 3),  # steps until the next
        st.sampled_from([0.5, 5.0, 1e6]),  # deadline
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(ARRIVALS, st.integers(1, 2), st.sampled_from([1, 3, 1 << 20]), st.booleans())
def test_whatever_is_asked_everybody_gets_one_end_and_nothing_is_left(
    arrivals, num_pairs, max_queue, loses_one
):
    world = World(num_pairs, QueueBounds(20, 1000), max_queue=max_queue)
    for index, (tenant, num_prompt, num_output, pause, deadline_s) in enumerate(arrivals):
        world.ask(tenant, num_prompt, num_output, deadline_s)
        for _ in range(pause):
            world.step()
        if loses_one and index == len(arrivals) // 2 and num_pairs == 2:
            ref = next(iter(world.prefills))
            del world.prefills[ref]
            world.core.left(ref, "gone", world.now)
            world.settle()
    world.run_out()
    assert world.ended.keys() == world.asked.keys()
    assert not world.core.occupancy.outstanding
    assert not world.core.occupancy.rooms()
    assert all(1 <= seconds <= 60 for seconds in world.refused)

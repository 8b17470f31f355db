"""The balancer's core against workers that answer, fail, vanish and repeat themselves."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import WorkerLoad, WorkerState
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    LegFailed,
    LegProgress,
    Ping,
    Pong,
    PrefillDispatch,
    RoomTokens,
    Stage,
    TokenBatch,
    TokenLogprobs,
    WriterStopped,
)
from bootstrap.messages import FailureReason as R
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.core import BalancerCore, News, Post
from cluster.balancer.instructions import Deliver, Fail, FailureKind
from cluster.balancer.members import Members
from cluster.balancer.request import Request, RequestSpec, RetryRules
from cluster.balancer.strays import ANSWERS_PER_S, Strays
from tests.support.members import member

ME = Peer(WorkerRef("lb", "f" * 16), "tcp://127.0.0.1:2")
P1, P2 = member("p1", Role.PREFILL), member("p2", Role.PREFILL)
D1, D2 = member("d1", Role.DECODE), member("d2", Role.DECODE)


def core_with(*members) -> BalancerCore:
    rng = random.Random(0)
    core = BalancerCore(ME, Members(), lambda: rng.randbytes(16))
    for joined in members:
        core.joined(joined, 0.0)
    return core


def a_request(max_tokens=4, *, prompt=(1, 2, 3), deadline_at=60.0, now=0.0, **sampling) -> Request:
    params = SamplingParams(seed=1, max_tokens=max_tokens, **sampling)
    spec = RequestSpec("req", prompt, params, bootstrap_stop_ids=(77,))
    return Request(spec, RetryRules(), deadline_at, waiting_since=now)


def test_a_prompt_is_scored_until_its_scores_are_delivered():
    core = core_with(P1, D1, P2, D2)
    params = SamplingParams(seed=1, max_tokens=4)
    spec = RequestSpec("req", (1, 2, 3), params, num_prompt_logprobs=2)
    core.submit(7, Request(spec, RetryRules(), 60.0, waiting_since=0.0), 0.0)
    (first,) = prefills(core)
    core.left(P1.info.peer.ref, "gone", 0.1)
    (second,) = prefills(core)
    assert first.num_prompt_logprobs == second.num_prompt_logprobs == 2
    scores = (TokenLogprobs(-1.0), TokenLogprobs(-2.0))
    batch = TokenBatch((RoomTokens(second.room, 0, (10,), prompt_logprobs=scores),))
    core.receive(P2.info.peer, batch, 0.2)
    core.left(D1.info.peer.ref, "gone", 0.3)
    core.left(D2.info.peer.ref, "gone", 0.3)
    core.joined(D1, 0.4)
    (third,) = prefills(core)
    assert (third.output_offset, third.num_prompt_logprobs) == (1, None)


def prefills(core) -> list[PrefillDispatch]:
    sent = [what.message for what in core.drain() if isinstance(what, Post)]
    return [message for message in sent if isinstance(message, PrefillDispatch)]


def posts(core) -> dict[str, list]:
    """Messages by worker; news is dropped."""
    by_worker: dict[str, list] = {}
    for what in core.drain():
        if isinstance(what, Post):
            by_worker.setdefault(what.peer.ref.worker_id, []).append(what.message)
    core.validate()
    return by_worker


def news(core) -> list:
    return [what.what for what in core.drain() if isinstance(what, News)]


def test_a_dispatch_names_each_leg_to_the_other():
    core = core_with(P1, D1)
    core.submit(7, a_request(), 10.0)
    sent = posts(core)
    (prefill,), (decode,) = sent["p1"], sent["d1"]
    assert isinstance(prefill, PrefillDispatch)
    assert isinstance(decode, DecodeDispatch)
    assert prefill.room == decode.room
    assert (prefill.decode, decode.prefill) == (D1.info.peer, P1.info.peer)
    assert prefill.reply_to == decode.reply_to == ME
    assert prefill.deadline_s == decode.deadline_s == 50.0
    assert prefill.bootstrap_stop_ids == (77,)
    assert core.occupancy.outstanding == {P1.info.peer.ref: 3, D1.info.peer.ref: 7}


def test_stop_ids_of_the_bootstrap_token_wait_for_min_tokens():
    core = core_with(P1, D1)
    core.submit(7, a_request(min_tokens=1), 0.0)
    assert posts(core)["p1"][0].bootstrap_stop_ids == ()


def test_prefill_is_relieved_by_its_token():
    core = core_with(P1, D1)
    core.submit(7, a_request(), 0.0)
    room = posts(core)["p1"][0].room
    core.receive(P1.info.peer, TokenBatch((RoomTokens(room, 0, (5,)),)), 0.1)
    core.validate()
    assert core.occupancy.outstanding == {D1.info.peer.ref: 7}


def test_load_spreads_by_tokens():
    core = core_with(P1, P2, D1, D2)
    core.submit(1, a_request(prompt=tuple(range(100))), 0.0)
    for key in (2, 3, 4):
        core.submit(key, a_request(), 0.0)
    counts = {worker: len(sent) for worker, sent in posts(core).items()}
    assert counts == {"p1": 1, "p2": 3, "d1": 1, "d2": 3}


def test_requests_wait_for_a_pair_and_go_when_it_joins():
    core = core_with(P1)
    core.submit(7, a_request(), 0.0)
    assert posts(core) == {}
    assert core.num_waiting == 1
    core.joined(D1, 1.0)
    assert set(posts(core)) == {"p1", "d1"}
    assert core.num_waiting == 0


def test_no_pair_in_time_is_an_error():
    core = core_with(P1)
    core.submit(7, a_request(), 0.0)
    core.tick(1.9)
    assert news(core) == []
    core.tick(2.0)
    (fail,) = news(core)
    assert fail.failure.kind is FailureKind.UNAVAILABLE
    assert core.num_requests == 0


def test_a_full_worker_is_asked_again_and_its_request_waits():
    core = core_with(P1, D1)
    core.submit(7, a_request(), 0.0)
    for now in (0.1, 1.1, 2.1, 3.1):
        room = posts(core)["p1"][0].room
        core.receive(P1.info.peer, LegFailed(room, R.QUEUE_FULL), now)
        assert "p1" not in posts(core)
        assert core.num_waiting == 1
        core.tick(now + 0.9)
    assert core.num_waiting == 0
    assert set(posts(core)) == {"p1", "d1"}


def test_a_request_that_one_worker_has_no_place_for_goes_to_another_at_once():
    core = core_with(P1, D1, P2)
    core.submit(7, a_request(), 0.0)
    room = posts(core)["p1"][0].room
    core.receive(P1.info.peer, LegFailed(room, R.QUEUE_FULL), 0.1)
    assert any(isinstance(message, PrefillDispatch) for message in posts(core)["p2"])


def test_a_continuation_carries_what_was_delivered():
    core = core_with(P1, D1)
    core.submit(7, a_request(), 0.0)
    room = posts(core)["p1"][0].room
    core.receive(P1.info.peer, TokenBatch((RoomTokens(room, 0, (50,)),)), 0.1)
    core.receive(D1.info.peer, TokenBatch((RoomTokens(room, 1, (51,)),)), 0.2)
    core.left(D1.info.peer.ref, "evicted", 0.3)
    assert posts(core)["p1"] == [AbortRoom(room, R.PEER_LOST)]
    restarted = member("d1", Role.DECODE, incarnation="1" * 16)
    core.joined(restarted, 0.5)
    sent = posts(core)
    (again,) = sent["p1"]
    assert again.room != room
    assert (again.attempt, again.output_offset) == (2, 2)
    assert again.prompt_token_ids == (1, 2, 3, 50, 51)
    assert again.sampling.max_tokens == 4
    assert again.decode == restarted.info.peer


def test_messages_from_a_stranger_change_nothing():
    core = core_with(P1, D1, D2)
    core.submit(7, a_request(), 0.0)
    room = posts(core)["p1"][0].room
    core.receive(D2.info.peer, TokenBatch((RoomTokens(room, 0, (5,), FinishReason.STOP),)), 0.1)
    core.receive(D2.info.peer, LegFailed(room, R.INTERNAL), 0.1)
    assert news(core) == []
    assert core.num_requests == 1
    assert core.strays.counts == {"room": 2}


def test_a_worker_that_works_for_nobody_is_told_so_now_and_then():
    core = core_with(P1, D1)
    batch = TokenBatch((RoomTokens(bytes(16), 3, (5,)),))
    for at in (0.0, 0.5, 1.1):
        core.receive(D1.info.peer, batch, at)
    assert posts(core) == {"d1": [AbortRoom(bytes(16), R.CANCELLED)] * 2}
    core.receive(D1.info.peer, LegProgress({bytes([1] * 16): Stage.RUNNING}), 2.0)
    assert posts(core) == {"d1": [AbortRoom(bytes([1] * 16), R.CANCELLED)]}
    last = TokenBatch((RoomTokens(bytes([2] * 16), 3, (5,), FinishReason.STOP),))
    core.receive(D1.info.peer, last, 3.0)
    core.receive(D1.info.peer, WriterStopped(bytes(16)), 3.0)
    assert posts(core) == {}


def test_answers_to_strays_are_bounded():
    strays = Strays()
    rooms = [i.to_bytes(16, "big") for i in range(1000)]
    assert sum(strays.may_answer(room, 5.0) for room in rooms) == ANSWERS_PER_S
    assert strays.may_answer(rooms[0], 6.0)
    assert not strays.may_answer(rooms[0], 6.5)


def test_a_dispatch_that_got_lost_is_noticed_by_what_the_worker_reports():
    core = core_with(P1, D1, D2)
    core.submit(7, a_request(), 0.0)
    room = posts(core)["p1"][0].room
    core.receive(P1.info.peer, LegProgress({room: Stage.TRANSFERRING}), 1.5)
    for at in (1.5, 2.5):
        core.receive(D1.info.peer, LegProgress({}), at)
    assert "d2" in posts(core)


def test_a_draining_worker_gets_nothing_new_and_one_that_is_back_takes_what_waits():
    core = core_with(P1, member("d1", Role.DECODE, WorkerLoad(state=WorkerState.DRAINING)))
    core.submit(7, a_request(), 0.0)
    assert posts(core) == {}
    core.loads(((D1.info.peer.ref, WorkerLoad()),), 0.5)
    assert set(posts(core)) == {"p1", "d1"}


@pytest.mark.parametrize("stop", ["cancel", "stop_hit", "abandon_all"])
def test_requests_ended_from_this_side_leave_nothing(stop):
    core = core_with(P1, D1)
    core.submit(7, a_request(), 0.0)
    room = posts(core)["p1"][0].room
    if stop == "abandon_all":
        core.abandon_all("stopping", 0.5)
    else:
        getattr(core, stop)(7, 0.5)
        getattr(core, stop)(7, 0.5)
    sent = posts(core)
    assert sent["p1"] == sent["d1"]
    assert [m.room for m in sent["p1"]] == [room]
    assert (core.num_requests, dict(core.occupancy.outstanding)) == (0, {})


class Cluster:
    """Workers with the real message flow, whose answers are lost, repeated and delayed at random."""

    def __init__(self, rng: random.Random, core: BalancerCore, trouble: float) -> None:
        self.rng, self.core, self.trouble = rng, core, trouble
        self.now = 0.0
        self.flying: list[tuple[float, Peer, object]] = []
        self.rooms: dict[tuple[str, bytes], object] = {}
        self.alive = {m.info.peer.ref: m for m in (P1, P2, D1, D2)}
        self.received: dict[int, list[int]] = {}
        self.outcomes: dict[int, object] = {}

    def carry_out(self) -> None:
        for what in self.core.drain():
            if isinstance(what, Post):
                if what.peer.ref in self.alive and self.rng.random() > self.trouble / 4:
                    self.at_worker(what.peer, what.message)
                continue
            key, event = what.key, what.what
            if isinstance(event, Deliver):
                assert key not in self.outcomes
                self.received.setdefault(key, []).extend(event.token_ids)
                if event.finish:
                    self.outcomes[key] = event.finish
            elif isinstance(event, Fail):
                assert key not in self.outcomes
                self.outcomes[key] = event.failure.kind
        self.core.validate()

    def at_worker(self, peer: Peer, message) -> None:
        name = peer.ref.worker_id
        if isinstance(message, Ping):
            self.send(peer, Pong())
            return
        if isinstance(message, AbortRoom):
            self.rooms.pop((name, message.room), None)
            return
        self.rooms[name, message.room] = message
        if self.rng.random() < self.trouble:
            reason = self.rng.choice(list(R))
            self.send(peer, LegFailed(message.room, reason))
            del self.rooms[name, message.room]
            return
        first, last = message.output_offset, message.sampling.max_tokens
        alone = isinstance(message, PrefillDispatch)
        for position in [first] if alone else range(first + 1, last):
            finish = FinishReason.LENGTH if position + 1 == last else None
            tokens = RoomTokens(message.room, position, (1000 + position,), finish)
            self.send(peer, TokenBatch((tokens,)))

    def send(self, peer: Peer, message) -> None:
        if self.rng.random() < self.trouble / 4:
            return
        for _ in range(2 if self.rng.random() < self.trouble else 1):
            delay = self.rng.random() * (2.0 if self.rng.random() < self.trouble else 0.1)
            self.flying.append((self.now + delay, peer, message))

    def step(self) -> None:
        self.now += 0.1
        due = [f for f in self.flying if f[0] <= self.now]
        self.flying = [f for f in self.flying if f[0] > self.now]
        for _, peer, message in sorted(due, key=lambda f: f[0]):
            if peer.ref in self.alive:
                self.core.receive(peer, message, self.now)
                self.carry_out()
        if self.rng.random() < self.trouble / 10:
            self.restart(self.rng.choice(list(self.alive)))
        self.core.tick(self.now)
        self.carry_out()

    def restart(self, ref: WorkerRef) -> None:
        old = self.alive.pop(ref)
        self.rooms = {k: v for k, v in self.rooms.items() if k[0] != ref.worker_id}
        self.core.left(ref, "died", self.now)
        peer = Peer(
            WorkerRef(ref.worker_id, f"{self.rng.getrandbits(64):016x}"), "tcp://127.0.0.1:3"
        )
        info = msgspec.structs.replace(old.info, peer=peer)
        self.alive[peer.ref] = msgspec.structs.replace(old, info=info)
        self.core.joined(self.alive[peer.ref], self.now)
        self.carry_out()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.05, 0.3]))
def test_whatever_the_workers_do_every_request_gets_one_outcome_and_no_token_is_wrong(
    seed, trouble
):
    rng = random.Random(seed)
    core = core_with(P1, P2, D1, D2)
    cluster = Cluster(rng, core, trouble)
    lengths = [rng.randint(1, 8) for _ in range(6)]
    for key, length in enumerate(lengths):
        core.submit(key, a_request(length, now=cluster.now), cluster.now)
        cluster.carry_out()
        cluster.step()
        if rng.random() < trouble:
            core.cancel(key, cluster.now)
            cluster.carry_out()
    while core.num_requests:
        cluster.step()
        assert cluster.now < 100
    assert set(cluster.outcomes) == set(range(len(lengths)))
    for key, length in enumerate(lengths):
        tokens = cluster.received.get(key, [])
        assert tokens == [1000 + i for i in range(len(tokens))]
        if cluster.outcomes[key] is FinishReason.LENGTH:
            assert len(tokens) == length
        assert trouble or cluster.outcomes[key] is FinishReason.LENGTH
    assert not core.occupancy.outstanding
    assert core.num_waiting == 0

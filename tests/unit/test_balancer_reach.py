"""A worker that the balancer cannot reach: its requests go on elsewhere, and it gets no new ones."""

import random

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.liveness import SILENCE_S
from bootstrap.messages import DecodeDispatch, LegProgress, Ping, Pong, Stage
from bootstrap.sampling import SamplingParams
from cluster.balancer.core import BalancerCore, News, Post
from cluster.balancer.instructions import Fail, FailureKind, Retry
from cluster.balancer.members import Members
from cluster.balancer.request import Request, RequestSpec, RetryRules
from tests.support.members import member

ME = Peer(WorkerRef("lb", "f" * 16), "tcp://127.0.0.1:2")
P1, D1, D2 = member("p1", Role.PREFILL), member("d1", Role.DECODE), member("d2", Role.DECODE)
TICK_S = 0.1


class Rig:
    """A core with time, and workers that answer unless they are `mute`; all report their rooms."""

    def __init__(self, *members: object) -> None:
        rng = random.Random(0)
        self.core = BalancerCore(ME, Members(), lambda: rng.randbytes(16))
        self.mute: set[WorkerRef] = set()
        self.now = 0.0
        self.dispatched: list[WorkerRef] = []
        self.news: list[object] = []
        self.rooms: list[bytes] = []
        for each in members:
            self.core.joined(each, 0.0)

    def ask(self, key: int) -> None:
        spec = RequestSpec("r", (1, 2, 3), SamplingParams(max_tokens=8, seed=1))
        self.core.submit(key, Request(spec, RetryRules(), self.now + 100, self.now), self.now)
        self.carry_out()

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            self.core.tick(self.now)
            for each in (P1, D1, D2):  # what comes from them comes, whatever reaches them
                stages = dict.fromkeys(self.rooms, Stage.WAITING)
                self.core.receive(each.info.peer, LegProgress(stages), self.now)
            self.carry_out()
            self.core.validate()

    def carry_out(self) -> None:
        for what in self.core.drain():
            if isinstance(what, News):
                self.news.append(what.what)
            elif isinstance(what, Post) and isinstance(what.message, Ping):
                if what.peer.ref not in self.mute:
                    self.core.receive(what.peer, Pong(), self.now)
            elif isinstance(what, Post) and isinstance(what.message, DecodeDispatch):
                self.dispatched.append(what.peer.ref)
                self.rooms.append(what.message.room)


def test_reports_alone_do_not_prove_that_a_worker_can_be_reached() -> None:
    rig = Rig(P1, D1, D2)
    rig.ask(1)
    rig.mute = {rig.dispatched[0]}
    rig.run(SILENCE_S + 0.5)
    assert len(rig.dispatched) == 2
    assert rig.dispatched[1] != rig.dispatched[0]
    assert sum(isinstance(news, Retry) for news in rig.news) == 1


def test_workers_that_answer_are_left_alone_however_long_they_compute() -> None:
    rig = Rig(P1, D1, D2)
    rig.ask(1)
    rig.run(25.0)
    assert len(rig.dispatched) == 1


def test_it_gets_nothing_new_until_it_answers() -> None:
    rig = Rig(P1, D1, D2)
    rig.ask(1)
    gone = rig.dispatched[0]
    rig.mute = {gone}
    rig.run(SILENCE_S + 0.5)
    rig.dispatched.clear()
    for key in range(2, 6):
        rig.ask(key)
    assert gone not in rig.dispatched
    rig.mute = set()
    rig.run(1.5)
    for key in range(6, 12):
        rig.ask(key)
    assert gone in rig.dispatched


def test_without_another_the_request_fails_and_the_balancer_is_not_ready() -> None:
    rig = Rig(P1, D1)
    rig.ask(1)
    rig.mute = {D1.info.peer.ref}
    rig.run(SILENCE_S + 0.5)
    assert rig.core.members.unready_reason() is not None
    rig.run(2.5)
    (failure,) = [news.failure for news in rig.news if isinstance(news, Fail)]
    assert failure.kind is FailureKind.UNAVAILABLE
    rig.mute = set()
    rig.run(1.5)
    assert rig.core.members.unready_reason() is None

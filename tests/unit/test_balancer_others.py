"""Two balancers over the same engines: neither sends its requests where the other's already are."""

from bootstrap.identity import Role
from bootstrap.membership import Member, WorkerLoad
from bootstrap.messages import DecodeDispatch, PrefillDispatch
from bootstrap.sampling import SamplingParams
from cluster.balancer.core import BalancerCore, Post
from cluster.balancer.members import Members
from cluster.balancer.others import Others
from cluster.balancer.request import Request, RequestSpec, RetryRules
from tests.support.cores import BALANCER, room
from tests.support.members import worker_info

P0, P1 = (worker_info(name, Role.PREFILL) for name in ("p0", "p1"))
D0, D1 = (worker_info(name, Role.DECODE) for name in ("d0", "d1"))
BUSY, IDLE = WorkerLoad(num_running=6, num_queued=2), WorkerLoad()


class Two:
    """A core over two engines of each role, that may not be the only balancer."""

    def __init__(self, *, shared: bool) -> None:
        rooms = iter(range(1, 1000))
        self.core = BalancerCore(BALANCER, Members(), lambda: room(next(rooms)))
        for info in (P0, P1, D0, D1):
            self.core.joined(Member(info, IDLE), 0.0)
        self.core.occupancy.others.see(shared)
        self.num = 0

    def submit(self) -> tuple[str, str]:
        """One request; the engines that got it."""
        self.num += 1
        spec = RequestSpec(f"r{self.num}", tuple(range(8)), SamplingParams(seed=1, max_tokens=8))
        self.core.submit(self.num, Request(spec, RetryRules(), 100.0, 0.0), 0.0)
        went: dict[type, str] = {}
        for what in self.core.drain():
            if isinstance(what, Post):
                went[type(what.message)] = what.peer.ref.worker_id
        return went[PrefillDispatch], went[DecodeDispatch]

    def hear(self, p0: WorkerLoad, d0: WorkerLoad) -> None:
        """Heartbeats; the other two are idle."""
        loads = [(P0, p0), (P1, IDLE), (D0, d0), (D1, IDLE)]
        self.core.loads(tuple((info.peer.ref, load) for info, load in loads), 0.0)


def test_the_least_loaded_counts_what_others_sent() -> None:
    two = Two(shared=True)
    two.hear(BUSY, BUSY)
    for _ in range(4):
        assert two.submit() == ("p1", "d1")
    two.hear(IDLE, IDLE)
    assert two.submit() == ("p0", "d0")


def test_ones_own_rooms_are_not_counted_twice() -> None:
    two = Two(shared=True)
    assert two.submit() == ("p0", "d0")
    assert two.submit() == ("p1", "d1")
    two.hear(WorkerLoad(num_running=1), WorkerLoad(num_queued=1))
    assert two.core.occupancy.others.rooms[P0.peer.ref] == 0
    assert two.submit() == ("p0", "d0")


def test_the_only_balancer_goes_by_what_it_sent() -> None:
    two = Two(shared=False)
    two.hear(BUSY, BUSY)
    assert two.submit() == ("p0", "d0")
    assert two.core.occupancy.burden() is two.core.occupancy.outstanding


def test_workers_and_balancers_that_left_are_forgotten() -> None:
    two = Two(shared=True)
    two.hear(BUSY, BUSY)
    two.core.left(P0.peer.ref, "test", 0.0)
    assert P0.peer.ref not in two.core.occupancy.others.rooms
    two.core.occupancy.others.see(False)
    assert two.submit() == ("p1", "d0")


def test_a_room_of_theirs_counts_as_one_of_ours() -> None:
    others = Others()
    others.see(True)
    others.heard([(P0.peer.ref, BUSY)], {P0.peer.ref: 3})
    assert others.rooms == {P0.peer.ref: 5}
    burden = others.added_to({P1.peer.ref: 300}, 3)
    assert burden == {P0.peer.ref: 500, P1.peer.ref: 300}

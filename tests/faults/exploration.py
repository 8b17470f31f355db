"""What is explored exhaustively: small clusters, and the faults that may strike them at any moment.

Two rooms of at most three blocks, one or two engines of a role, losses, duplicates, cancels, failed
writes, a crash of any process. In every order of events: pages are conserved and none is written by two
rooms, nobody reads what no record made valid, tokens are the solo run's, each request has one outcome,
and every run ends with nothing held.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bootstrap.identity import Peer
from bootstrap.sampling import SamplingParams
from engine.core import PeerLeft
from tests.support.cores import limits, prompt
from tests.support.joined_explore import SmallCluster, explore
from tests.support.joined_memory import VOCAB_SIZE

MAX_STATES = 40_000
MAX_DEEP_STATES = 4_000_000

CANCELS = ("cancel 0",)
LOSSES = ("lose-message p0 d0", "lose-message d0 p0")
REPEATS = tuple(
    f"repeat-message {ends}" for ends in ("p0 d0", "d0 p0", "lb p0", "lb d0", "p0 lb", "d0 lb")
)
BROKEN_WRITES = ("fail-write",)
CRASHES = ("kill p0 lose", "kill d0 lose", "kill p0 silent", "kill d0 silent", "kill lb")


class Explored(SmallCluster):
    """A small cluster with more faults: messages that come twice, a balancer that dies.

    It has `budget` of its faults to spend, each once.
    """

    def __init__(
        self, faults: tuple[str, ...], budget: int, max_attempts: int, **options: Any
    ) -> None:
        super().__init__(faults, **options)
        self.budget = budget
        self.balancer.max_attempts = max_attempts
        self.balancer.takes_turns = True

    def _is_possible(self, fault: str) -> bool:
        kind, *args = fault.split()
        if kind in ("repeat-message", "lose-message"):
            return bool(self.links.get(self._ends(args)))
        if kind == "kill":
            return args[0] == "lb" or self._has(args[0])
        return super()._is_possible(fault)

    def _spend(self, fault: str) -> None:
        left = tuple(other for other in self.faults if other != fault)
        kind, *args = fault.split()
        if kind == "repeat-message":
            link = self.links[self._ends(args)]
            link.append(link[0])
        elif kind == "kill" and args[0] == "lb":
            self._kill_balancer()
        else:
            super()._spend(fault)
        self.budget -= 1
        self.faults = left if self.budget else ()

    def _kill_balancer(self) -> None:
        """Its clients see their connections end; engines hear of it in their own time."""
        me = self.balancer.me
        for request in self.balancer.pending():
            self.balancer._conclude(request, "balancer lost")
        for ends, link in self.links.items():
            if me in ends:
                link.clear()
        for who, news in self.news.items():
            if who == me:
                news.clear()
            else:
                news.append(PeerLeft(me.ref, dead=True))
        self.settle()

    def _has(self, worker_id: str) -> bool:
        return any(node.me.ref.worker_id == worker_id for node in self.nodes.values())

    def _ends(self, names: list[str]) -> tuple[Peer, Peer]:
        """The ends of a link; of one to the dead, which nothing is on, the balancer's."""
        me = self.balancer.me
        source, target = (self._called(n).me if self._has(n) else me for n in names)
        return source, target


@dataclass(frozen=True, slots=True)
class World:
    """One small cluster: prompts of `num_tokens` are dispatched, nothing has arrived yet."""

    name: str
    num_tokens: tuple[int, ...]
    max_tokens: int
    faults: tuple[str, ...]
    num_prefills: int = 1
    num_decodes: int = 1
    max_attempts: int = 1
    num_blocks: int = 3

    def cluster(self, budget: int = 1) -> SmallCluster:
        """Its first state, with `budget` of the faults to strike."""
        pool = limits(num_blocks=self.num_blocks, vocab_size=VOCAB_SIZE)
        cluster = Explored(
            self.faults,
            budget,
            self.max_attempts,
            num_prefills=self.num_prefills,
            num_decodes=self.num_decodes,
            prefill_limits=pool,
            decode_limits=pool,
        )
        for who, news in cluster.news.items():
            while news:
                cluster.apply(("news", who))
        for number, num in enumerate(self.num_tokens):
            params = SamplingParams(seed=1, max_tokens=self.max_tokens)
            cluster.balancer.submit(prompt(num, first=40 * number), params, deadline_s=1000.0)
        for node in cluster.nodes.values():
            node.begin(cluster.now)  # the first progress report is out of the way
        cluster.settle()
        return cluster


SMALL = (
    World("two rooms, messages come twice", (5, 3), 2, REPEATS[:2]),
    World("one room, messages come twice", (9,), 3, REPEATS),
    World("one room, the balancer crashes", (9,), 3, ("kill lb",)),
    World(
        "another prefill engine takes over",
        (5,),
        2,
        ("kill p0 lose",),
        num_prefills=2,
        max_attempts=2,
    ),
    World(
        "another decode engine takes over",
        (5,),
        2,
        ("kill d0 lose",),
        num_decodes=2,
        max_attempts=2,
    ),
    World("the same pair tries again", (5,), 2, BROKEN_WRITES, max_attempts=2),
)
DEEP = (
    World("two rooms, the balancer crashes", (5, 3), 2, ("kill lb",)),
    World("one room, any faults", (9,), 3, (*CANCELS, *LOSSES, *REPEATS, *BROKEN_WRITES, *CRASHES)),
    World("two rooms, any faults", (5, 3), 2, (*CANCELS, *LOSSES, *BROKEN_WRITES, *CRASHES)),
    World(
        "two prefill engines, one retry",
        (5,),
        2,
        (*LOSSES, *BROKEN_WRITES, "kill p0 lose", "kill p0 silent"),
        num_prefills=2,
        max_attempts=2,
    ),
)


def all_ends(
    world: World, *, budget: int = 1, max_states: int = MAX_STATES
) -> tuple[Counter[tuple[str | None, ...]], int]:
    """Outcomes of all requests in every final state, and how many states there are.

    Raises AssertionError, with the events that led there, where something that must hold does not.
    """
    ends: Counter[tuple[str | None, ...]] = Counter()

    def at_end(state: SmallCluster) -> None:
        assert state.done(), f"held at the end: {state.leftovers()}"
        ends[tuple(request.outcome for request in state.balancer.requests)] += 1

    num_states = explore(world.cluster(budget), at_end, max_states)
    return ends, num_states


def run_deep(depth: int) -> Iterator[tuple[str, int, str]]:
    """Each world with `depth` faults in one run: its name, how many states it has, what is wrong."""
    for world in (*SMALL, *DEEP):
        try:
            _, num_states = all_ends(world, budget=depth, max_states=MAX_DEEP_STATES)
        except AssertionError as error:
            yield world.name, 0, str(error)
        else:
            yield world.name, num_states, ""

"""A whole cluster without a clock, threads or sockets: whoever drives it chooses what happens next.

Real cores and handoffs; memory, network, pump, bootstrap service and balancer are the plainest things
that can stand in for them. `choices` lists what could happen now, `apply` makes it happen and checks
everything that must hold at every moment.
"""

from collections import deque
from random import Random
from typing import Any

from bootstrap.identity import Peer, Role
from bootstrap.messages import Message
from decode.instructions import TornDown
from engine.core import BalancerIsMember, PeerLeft, Post
from engine.limits import EngineLimits
from kv_transfer.ledger import PageState
from tests.support.cores import limits, peer
from tests.support.joined_balancer import Balancer
from tests.support.joined_memory import GARBAGE, VOCAB_SIZE, PageViolation
from tests.support.joined_nodes import DecodeNode, PrefillNode, Write

Node = PrefillNode | DecodeNode
Choice = tuple[str, Any]
IDLE_STEP_S = 0.4
DEBRIS_S = 1.5  # how long the rest of a write that was cut short may still arrive
MAX_IDLE_S = 400.0


class Cluster:
    """Links keep their order; everything else is free. Dead engines' last messages may be lost."""

    def __init__(
        self,
        rng: Random,
        *,
        num_prefills: int = 1,
        num_decodes: int = 1,
        prefill_limits: EngineLimits | None = None,
        decode_limits: EngineLimits | None = None,
        max_attempts: int = 6,
        links_legs: bool = True,
    ) -> None:
        self.now = 0.0
        self.checks_landing = True
        self.balancer = Balancer(rng, max_attempts=max_attempts, links_legs=links_legs)
        self.nodes: dict[Peer, Node] = {}
        self.links: dict[tuple[Peer, Peer], deque[Message]] = {}
        self.news: dict[Peer, deque[Any]] = {self.balancer.me: deque()}
        self.orphans: list[Write] = []  # writes whose engine is dead, on their way all the same
        self.debris: list[tuple[Write, float]] = []  # rests of writes cut short, and until when
        self.num_landed_late = self.num_corrupted = 0
        self._rng = rng
        self._limits = {
            Role.PREFILL: prefill_limits or limits(vocab_size=VOCAB_SIZE, max_queue=999),
            Role.DECODE: decode_limits or limits(vocab_size=VOCAB_SIZE, max_queue=999),
        }
        self._lives = 0
        for number in range(num_prefills):
            self.start(Role.PREFILL, f"p{number}")
        for number in range(num_decodes):
            self.start(Role.DECODE, f"d{number}")

    # --- lives ---------------------------------------------------------------------------------

    def start(self, role: Role, worker_id: str) -> Node:
        """A new incarnation; everybody hears of it, and it hears of everybody, in their own time."""
        self._lives += 1
        make = PrefillNode if role is Role.PREFILL else DecodeNode
        node = make(peer(worker_id, self._lives), self._limits[role])
        for news in self.news.values():
            news.append(node.info)
        self.news[node.me] = deque(other.info for other in self.nodes.values())
        node.put(BalancerIsMember(self.balancer.me.ref))
        self.nodes[node.me] = node
        return node

    def kill(self, node: Node, *, silent_first: bool = False) -> None:
        """The process is gone: its last messages may be lost, its writes may still land."""
        del self.nodes[node.me], self.news[node.me]
        for (source, _), link in self.links.items():
            if source == node.me:
                self._lose_tail(link)
        if isinstance(node, PrefillNode):
            self.orphans += node.writes
        else:
            agent_name = node.info.transfer.agent_name
            for write in self.writes():
                write.doomed |= write.submit.agent_name == agent_name
        for news in self.news.values():
            if silent_first:
                news.append(PeerLeft(node.me.ref, dead=False))
            news.append(PeerLeft(node.me.ref, dead=True))

    def fall_silent(self, node: Node) -> None:
        """Its lease runs out although it lives; then it is heard again."""
        for who, news in self.news.items():
            if who != node.me:
                news.extend((PeerLeft(node.me.ref, dead=False), node.info))

    def restart(self, node: Node, *, silent_first: bool = False) -> None:
        """Killed, and replaced by a new incarnation of the same worker."""
        self.kill(node, silent_first=silent_first)
        self.start(node.role, node.me.ref.worker_id)

    # --- what may happen -----------------------------------------------------------------------

    def writes(self) -> list[Write]:
        """Every write on its way."""
        alive = (node for node in self.nodes.values() if isinstance(node, PrefillNode))
        return [*self.orphans, *(write for node in alive for write in node.writes)]

    def choices(self) -> list[Choice]:
        """What could happen next without time passing."""
        found: list[Choice] = [("deliver", link) for link, queue in self.links.items() if queue]
        found += [("news", who) for who, queue in self.news.items() if queue]
        for me, node in self.nodes.items():
            if node.plan is not None:
                found.append(("end", me))
            elif node.awake:
                found.append(("begin", me))
            if node.digesting:
                found.append(("digest", me))
            if isinstance(node, DecodeNode) and node.tear_downs:
                found.append(("tear down", me))
        found += [("land" if w.left and not w.doomed else "finish", w) for w in self.writes()]
        found += [("debris", write) for write, _ in self.debris]
        return found

    def apply(self, choice: Choice) -> None:
        """Make it happen, send what it set off, and check the engine that it touched."""
        kind, what = choice
        if kind in ("land", "debris"):
            assert isinstance(what, Write)
            self._land(what)
        elif kind == "finish":
            assert isinstance(what, Write)
            self.finish(what, "the peer is gone" if what.doomed else None)
        elif kind == "deliver":
            self._deliver(*what)
        elif kind == "news":
            self._hear(what)
        else:
            node = self.nodes[what]
            if kind == "begin":
                node.begin(self.now)
            elif kind == "digest":
                node.digest()
            elif kind == "end":
                node.end(self.now, self.balancer.truth)
            else:
                assert isinstance(node, DecodeNode)
                self._tear_down(node)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        """Time passes; every loop looks around."""
        self.now += seconds
        self.debris = [(write, until) for write, until in self.debris if self.now < until]
        for node in self.nodes.values():
            node.awake = True

    def settle(self) -> None:
        """Posts enter their links; everything alive is checked."""
        for node in self.nodes.values():
            self._route(node.me, node.posts)
            if node.plan is None:
                node.validate()
        self._route(self.balancer.me, self.balancer.posts)
        self.debris = [(w, until) for w, until in self.debris if w.left and self._target(w)]

    def finish(self, write: Write, error: str | None) -> None:
        """A write's end reaches its engine, if that is alive; what it left out may still arrive."""
        if write.left:
            self.debris.append((write, self.now + DEBRIS_S))
        if write in self.orphans:
            self.orphans.remove(write)
        else:
            node = self.nodes[write.source]
            assert isinstance(node, PrefillNode)
            node.written(write, error)

    # --- inner ---------------------------------------------------------------------------------

    def _route(self, source: Peer, posts: list[Post]) -> None:
        for post in posts:
            self.links.setdefault((source, post.peer), deque()).append(post.message)
        posts.clear()

    def _deliver(self, source: Peer, target: Peer) -> None:
        message = self.links[source, target].popleft()
        receiver = self.balancer if target == self.balancer.me else self.nodes.get(target)
        if receiver is not None:
            receiver.receive(source, message)

    def _lose_tail(self, link: deque[Message]) -> None:
        for _ in range(self._rng.randint(0, len(link))):
            link.pop()

    def _hear(self, who: Peer) -> None:
        event = self.news[who].popleft()
        receiver = self.balancer if who == self.balancer.me else self.nodes[who]
        if isinstance(event, PeerLeft):
            receiver.left(event.ref, event.dead)
        else:
            receiver.joined(event)

    def _tear_down(self, node: DecodeNode) -> None:
        """After it nothing of the dead engine's can arrive here but what is under way already."""
        order = node.tear_downs.pop(0)
        for write in list(self.orphans):
            if write.source.ref == order.writer.ref and self._target(write) is node:
                self.finish(write, "torn down")
        node.put(TornDown(order.writer.ref))

    def _land(self, write: Write) -> None:
        """One page arrives; of a dead engine or a write cut short it is garbage."""
        target = self._target(write)
        if target is None:
            write.doomed = True  # it died before its engine heard of it
            return
        local, remote = write.left.popleft()
        content = [GARBAGE] * len(target.memory.pages[0])
        source = self.nodes.get(write.source)
        if isinstance(source, PrefillNode) and write in source.writes:
            content = list(source.memory.pages[local])
        if write.corrupt:
            write.corrupt, content = False, [GARBAGE] * len(content)
            self.num_corrupted += 1
        self._check_landing(target, write.submit.room, remote)
        target.memory.pages[remote] = content

    def _target(self, write: Write) -> DecodeNode | None:
        decodes = [node for node in self.nodes.values() if isinstance(node, DecodeNode)]
        name = write.submit.agent_name
        return next((node for node in decodes if node.info.transfer.agent_name == name), None)

    def _check_landing(self, target: DecodeNode, room: bytes, page: int) -> None:
        ledger = target.ledger
        state = ledger.state_of(page)
        if room in target.core.quarantine.rooms():
            self.num_landed_late += 1
        expected = (PageState.WRITING, PageState.QUARANTINED)
        if self.checks_landing and (state not in expected or page not in ledger.pages_of(room)):
            raise PageViolation(f"a write of room {room.hex()} landed in a page that is {state}")

    # --- driving -------------------------------------------------------------------------------

    def leftovers(self) -> dict[Peer, object]:
        """What engines still hold."""
        found = {me: node.leftovers() for me, node in self.nodes.items()}
        return {me: left for me, left in found.items() if left}

    def run_idle(self) -> None:
        """Without further faults, in any order: until every request ended and nothing is held."""
        idle_until = self.now + MAX_IDLE_S
        while True:
            choices = self.choices()
            urgent = [choice for choice in choices if choice[0] != "debris"]
            if urgent or (choices and self._rng.random() < 0.5):
                self.apply(self._rng.choice(choices))
                continue
            if not self.balancer.pending() and not self.leftovers() and not self.orphans:
                return
            if self.now > idle_until:
                pending = len(self.balancer.pending())
                raise AssertionError(f"{pending} requests hang; held: {self.leftovers()}")
            self.pass_time(IDLE_STEP_S)

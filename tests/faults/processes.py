"""The four kinds of processes of a cluster in fake time: real cores inside, timers and posts outside.

An engine is the joined simulation's node with a loop, a step time and a real session with the bootstrap
service; the service has the real registry; the balancer has the real core, members and policies.
"""

from collections.abc import Callable, Mapping, Sequence

from bootstrap.directory import (
    BalancerJoined,
    DirectoryEvent,
    Fenced,
    Joined,
    Left,
    LoadsChanged,
)
from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import (
    BalancerInfo,
    Heartbeat,
    Register,
    Subscribe,
    Unregister,
    WorkerInfo,
    WorkerLoad,
)
from bootstrap.messages import Ping, Pong
from bootstrap.registry import Registry, Send
from bootstrap.session import DEFAULT_LEASE_S, Session
from cluster.balancer.core import BalancerCore, News
from cluster.balancer.core import Post as BalancerPost
from cluster.balancer.members import Members
from decode.instructions import TornDown
from engine.core import BalancerIsMember
from engine.limits import EngineLimits
from tests.faults.clock import Clock, Process
from tests.faults.network import Network, Packet
from tests.support.joined_nodes import DecodeNode, PrefillNode, Write

STEP_S = 0.01
IDLE_S = 0.1  # how often an idle engine's loop looks around
CLIENT_POLL_S = 0.25
SERVICE_TICK_S = DEFAULT_LEASE_S / 20
BALANCER_TICK_S = 0.1

SERVICE = Peer(WorkerRef("bootstrap", "0" * 16), "tcp://bootstrap:1")

Truth = Mapping[bytes, Sequence[int]]


class Service(Process):
    """The bootstrap service, which never fails here."""

    def __init__(self, clock: Clock, network: Network) -> None:
        super().__init__(clock)
        self.me = SERVICE
        self.registry = Registry(SERVICE.ref, DEFAULT_LEASE_S)
        self._network = network
        self._endpoints: dict[WorkerRef, str] = {}
        self.later(0.0, self._tick)

    def receive(self, packet: Packet) -> None:
        """What its shell does with each kind of message."""
        sender, body, now = packet.sender, packet.message, self.clock.now
        self._endpoints[sender.ref] = sender.endpoint
        if isinstance(body, Heartbeat):
            self._send(self.registry.heartbeat(sender.ref, body.load, now))
        elif isinstance(body, Subscribe):
            self._send(self.registry.subscribe(sender.ref, body, now))
        elif isinstance(body, Register):
            self._send(self.registry.register(body, now))
        elif isinstance(body, Unregister):
            self._send(self.registry.unregister(sender.ref))

    def evict(self, ref: WorkerRef) -> None:
        """A supervisor saw a process end."""
        self._send(self.registry.evict(ref))

    def _tick(self) -> None:
        self._send(self.registry.tick(self.clock.now))
        self.later(SERVICE_TICK_S, self._tick)

    def _send(self, sends: list[Send]) -> None:
        for send in sends:
            endpoint = self._endpoints.get(send.to)
            if endpoint is not None:
                self._network.send(self.me, send.to, endpoint, send.message)


class _Client(Process):
    """A process with a session: it beats when a beat is due."""

    def __init__(
        self, clock: Clock, network: Network, me: Peer, info: WorkerInfo | BalancerInfo
    ) -> None:
        super().__init__(clock)
        self.me = me
        self.network = network
        self.session = Session(info, clock.now)
        self._beat_at = clock.now
        self.later(0.0, self._turn)

    def receive(self, packet: Packet) -> None:
        """What is for another incarnation is dropped; the service's word is the session's."""
        if packet.recipient != self.me.ref:
            return
        if packet.sender == SERVICE:
            now = self.clock.now
            for event in self.session.receive(SERVICE.ref, packet.message, now):
                self.hear(event)
            if self.session.due_at < self._beat_at:
                self._beat_at = self.session.due_at
                self.later(self._beat_at - now, self._turn)
        else:
            self.take(packet)

    def load(self) -> WorkerLoad:
        """What the next heartbeat says."""
        return WorkerLoad()

    def hear(self, event: DirectoryEvent) -> None:
        raise NotImplementedError

    def take(self, packet: Packet) -> None:
        raise NotImplementedError

    def _turn(self) -> None:
        now = self.clock.now
        for event in self.session.tick(now):
            self.hear(event)
        if now >= self.session.due_at:
            for message in self.session.beat(self.load(), now):
                self.network.send(self.me, None, SERVICE.endpoint, message)
        if now >= self._beat_at:
            wait_s = max(0.001, min(CLIENT_POLL_S, self.session.due_at - now))
            self._beat_at = now + wait_s
            self.later(wait_s, self._turn)


class Worker(_Client):
    """An engine: its loop goes round at every event, and now and then without one."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        me: Peer,
        node: PrefillNode | DecodeNode,
        truth: Truth,
        on_writes: "Callable[[Worker], None]",
    ) -> None:
        super().__init__(clock, network, me, node.info)
        self.node = node
        self.on_fenced: Callable[[Worker], None] = lambda worker: None
        self._truth = truth
        self._on_writes = on_writes
        self._looks = False  # whether a look around is due
        self._round()

    @property
    def info(self) -> WorkerInfo:
        """Its registration."""
        return self.node.info

    def load(self) -> WorkerLoad:
        return self.node.core.load()

    def hear(self, event: DirectoryEvent) -> None:
        self._tell_time()
        if isinstance(event, Joined):
            self.node.joined(event.member.info)
        elif isinstance(event, BalancerJoined):
            self.node.put(BalancerIsMember(event.member.info.peer.ref))
        elif isinstance(event, Left):
            self.node.left(event.ref, event.dead)
        elif isinstance(event, Fenced):
            self.on_fenced(self)  # it ends, and its supervisor sees that

    def take(self, packet: Packet) -> None:
        if isinstance(packet.message, Ping):
            sender = packet.sender
            self.network.send(self.me, sender.ref, sender.endpoint, Pong())
            return
        self._tell_time()
        self.node.receive(packet.sender, packet.message)

    def written(self, write: Write, error: str | None) -> None:
        """The pump is done with a write."""
        assert isinstance(self.node, PrefillNode)
        self._tell_time()
        self.node.written(write, error)

    def acted(self) -> None:
        """Posts leave, writes begin, the loop goes round if there is something for it."""
        node = self.node
        if isinstance(node, DecodeNode):
            orders, node.tear_downs = node.tear_downs, []
            for order in orders:
                node.put(TornDown(order.writer.ref))
        while node.digesting:
            node.digest()
        self._emit()
        if node.inbox and node.plan is None and self.alive:
            self._round()

    def _tell_time(self) -> None:
        if isinstance(self.node, PrefillNode):
            self.node.handoffs.pass_time(self.clock.now)

    def _round(self) -> None:
        node, now = self.node, self.clock.now
        node.begin(now)
        self._emit()
        if node.plan is not None:
            self.later(STEP_S, self._end_step)
            return
        node.validate()
        if not self._looks:
            self._looks = True
            self.later(IDLE_S, self._look_around)

    def _look_around(self) -> None:
        self._looks = False
        if self.node.plan is None:
            self._round()

    def _end_step(self) -> None:
        self.node.end(self.clock.now, self._truth)
        self._emit()
        self._round()

    def _emit(self) -> None:
        posts, self.node.posts = self.node.posts, []
        for post in posts:
            self.network.send(self.me, post.peer.ref, post.peer.endpoint, post.message)
        if isinstance(self.node, PrefillNode) and self.node.writes:
            self._on_writes(self)


class BalancerProcess(_Client):
    """The balancer; `on_news` gets what its clients would."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        me: Peer,
        mint_room: Callable[[], bytes],
        on_news: Callable[[News], None],
    ) -> None:
        super().__init__(clock, network, me, BalancerInfo(me, "tiny", "http://lb:8000"))
        self.core = BalancerCore(me, Members(), mint_room)
        self.on_left: Callable[[Left], None] = lambda left: None
        self._on_news = on_news
        self.later(BALANCER_TICK_S, self._tick)

    def hear(self, event: DirectoryEvent) -> None:
        now = self.clock.now
        if isinstance(event, Joined):
            self.core.joined(event.member, now)
        elif isinstance(event, Left):
            self.on_left(event)
            self.core.left(event.ref, event.reason.value, now)
        elif isinstance(event, LoadsChanged):
            self.core.loads(event.loads, now)

    def take(self, packet: Packet) -> None:
        self.core.receive(packet.sender, packet.message, self.clock.now)

    def acted(self) -> None:
        """Messages leave, clients hear."""
        for what in self.core.drain():
            if isinstance(what, BalancerPost):
                peer = what.peer
                self.network.send(self.me, peer.ref, peer.endpoint, what.message)
            else:
                self._on_news(what)

    def _tick(self) -> None:
        self.core.tick(self.clock.now)
        self.core.validate()
        self.later(BALANCER_TICK_S, self._tick)


def make_node(me: Peer, role: Role, limits: EngineLimits) -> PrefillNode | DecodeNode:
    """An engine's inside."""
    return PrefillNode(me, limits) if role is Role.PREFILL else DecodeNode(me, limits)

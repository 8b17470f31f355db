"""A whole cluster in fake time, its clients, and what can happen to its processes and links.

Every event is checked as it happens: clients' tokens against the solo run, landings against ledgers,
reads against the KV that should be there. What must hold at the end is `checks`' to say.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from bootstrap.directory import Left
from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.messages import HandoffRecord, Manifest, PrefillStarted, TokenBatch
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.core import News
from cluster.balancer.instructions import Deliver, Dispatch, Fail, Retry
from cluster.balancer.request import Request, RequestSpec, RetryRules
from tests.faults.clock import Clock
from tests.faults.network import Network, Packet
from tests.faults.processes import BalancerProcess, Process, Service, Worker, make_node
from tests.faults.transport import Transport
from tests.support.cores import limits
from tests.support.joined_memory import VOCAB_SIZE, kv_of, solo_run

DEADLINE_S = 60.0
EVICTION_S = 0.2  # a supervisor sees a process end, and says so
RULES = RetryRules()  # the settings' defaults


@dataclass(slots=True, eq=False)
class Client:
    """A request as its client sees it. `stop_at` tokens complete its text, if given."""

    prompt: tuple[int, ...]
    expected: list[int]
    finish: FinishReason
    stop_at: int | None = None
    tokens: list[int] = field(default_factory=list)
    rooms: list[bytes] = field(default_factory=list)
    pairs: list[tuple[WorkerRef, WorkerRef]] = field(default_factory=list)
    outcome: str | None = None
    outcome_at: float = 0.0
    detail: str = ""

    def end(self, outcome: str, now: float, detail: str = "") -> None:
        """Its one outcome."""
        assert self.outcome is None, f"a second outcome, {outcome}, after {self.outcome}"
        self.outcome, self.outcome_at, self.detail = outcome, now, detail


class World:
    """`num_pairs` prefill and decode engines, one bootstrap service, one balancer."""

    def __init__(self, seed: int, num_pairs: int, absent: str | None = None) -> None:
        """Without the engine `absent`."""
        self.clock = Clock()
        self.rng = Random(seed)
        self.network = Network(self.clock, self._deliver, self.rng)
        self.transport = Transport(self.clock, self.network, self.workers, self.rng)
        self.arrived: Callable[[Packet], None] = lambda packet: None
        self.noticed_at: list[float] = []  # when the balancer learned of a fault
        self.clients: dict[int, Client] = {}
        self.buried: set[bytes] = set()  # rooms that nobody may work for any more
        self.num_engines = 2 * num_pairs
        self.service = Service(self.clock, self.network)
        self._truth: dict[bytes, list[int]] = {}
        self._pairs: dict[bytes, tuple[WorkerRef, WorkerRef]] = {}
        self._inboxes: dict[str, Process] = {self.service.me.endpoint: self.service}
        self._num_lives = 0
        self.balancer = BalancerProcess(
            self.clock, self.network, self._peer("lb", "lb"), self._mint_room, self._hear
        )
        self.balancer.on_left = self._left
        self._inboxes[self.balancer.me.endpoint] = self.balancer
        self.tap: Callable[[Packet], bool] = lambda packet: True
        self.network.about_to_send = self._about_to_send
        for number in range(num_pairs):
            for role, worker_id in ((Role.PREFILL, f"p{number}"), (Role.DECODE, f"d{number}")):
                if worker_id != absent:
                    self.start(role, worker_id)

    # --- engines -------------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """Engines at their addresses; a dead one is there until another takes its address."""
        return [p for p in self._inboxes.values() if isinstance(p, Worker)]

    def worker(self, worker_id: str) -> Worker:
        """The living incarnation."""
        return next(w for w in self.workers() if w.alive and w.me.ref.worker_id == worker_id)

    def start(self, role: Role, worker_id: str, address: str | None = None) -> Worker:
        """A new incarnation, at `address` or at one of its own."""
        me = self._peer(worker_id, address or f"{worker_id}-{self._num_lives}")
        pool = limits(
            num_blocks=16, vocab_size=VOCAB_SIZE, max_num_batched_tokens=4, verify_handoff=True
        )
        node = make_node(me, role, pool)
        worker = Worker(self.clock, self.network, me, node, self._truth, self.transport.look)
        worker.on_fenced = self.kill
        self._inboxes[me.endpoint] = worker
        if address is not None:
            for endpoint in self._inboxes:
                self.network.heal(me.endpoint, endpoint)
        return worker

    def kill(self, worker: Worker) -> None:
        """kill -9: its connections are reset, and its supervisor sees it."""
        worker.kill()
        for endpoint in list(self._inboxes):  # senders keep what they say, for whoever comes there
            self.network.refuse(worker.me.endpoint, endpoint)
        if worker.me.ref.worker_id.startswith("p"):
            self.transport.writer_died(worker)
        else:
            self.transport.target_died(worker)
        self.clock.at(EVICTION_S, self.service.evict, worker.me.ref)

    def restart(self, worker: Worker, delay_s: float, *, same_address: bool) -> None:
        """Its successor registers in `delay_s`."""
        address = worker.me.endpoint.removeprefix("tcp://").removesuffix(":1")
        ref, role = worker.me.ref, worker.info.role
        where = address if same_address else None
        self.clock.at(delay_s, self.start, role, ref.worker_id, where)

    # --- clients -------------------------------------------------------------------------------

    def submit(self, prompt: tuple[int, ...], max_tokens: int, stop_at: int | None = None) -> int:
        """A client's request; its key."""
        params = SamplingParams(seed=1, max_tokens=max_tokens)
        expected, finish = solo_run(prompt, params)
        key, now = len(self.clients), self.clock.now
        self.clients[key] = Client(prompt, expected, finish, stop_at)
        spec = RequestSpec(f"r{key}", prompt, params)
        request = Request(spec, RULES, now + DEADLINE_S, now)
        self.balancer.act(self.balancer.core.submit, key, request, now)
        return key

    def cancel(self, key: int) -> None:
        """The client goes away."""
        if self.clients[key].outcome is None:
            self.balancer.act(self.balancer.core.cancel, key, self.clock.now)

    # --- inner ---------------------------------------------------------------------------------

    def _peer(self, worker_id: str, address: str) -> Peer:
        self._num_lives += 1
        return Peer(WorkerRef(worker_id, f"{self._num_lives:016x}"), f"tcp://{address}:1")

    def _mint_room(self) -> bytes:
        return self.rng.getrandbits(128).to_bytes(16, "big")

    def _check_worker(self, packet: Packet) -> None:
        """Only the incarnations that a room was dispatched to work for it."""
        message = packet.message
        if isinstance(message, PrefillStarted | Manifest | HandoffRecord):
            rooms = [message.room]
        else:
            rooms = [r.room for r in message.rooms] if isinstance(message, TokenBatch) else []
        for room in rooms:
            assert packet.sender.ref in self._pairs[room], "a room of another incarnation"
            assert room not in self.buried, "a room came back to life"

    def _about_to_send(self, packet: Packet) -> bool:
        """The dead send nothing, the stopped when they wake."""
        if not self.tap(packet):
            return False
        sender = self._inboxes.get(packet.sender.endpoint)
        if sender is None or sender is self.service:
            return True
        assert isinstance(sender, Worker | BalancerProcess)
        self._check_worker(packet)
        if sender.me != packet.sender or not sender.alive:
            return False
        if sender.stopped:
            sender.act(self.network.carry, packet)
        return not sender.stopped

    def _deliver(self, packet: Packet) -> None:
        process = self._inboxes.get(packet.endpoint)
        if process is not None:
            process.act(self._receive, process, packet)

    def _receive(self, process: Process, packet: Packet) -> None:
        assert isinstance(process, Service | Worker | BalancerProcess)
        process.receive(packet)
        process.acted()
        self.arrived(packet)

    def _left(self, left: Left) -> None:
        self.noticed_at.append(self.clock.now)

    def _hear(self, news: News) -> None:
        client, what, now = self.clients[news.key], news.what, self.clock.now
        if isinstance(what, Dispatch):
            client.rooms.append(what.attempt.room)
            client.pairs.append(what.attempt.pair.refs)
            self._pairs[what.attempt.room] = what.attempt.pair.refs
            self._truth[what.attempt.room] = kv_of([*client.prompt, *client.expected])
        elif isinstance(what, Deliver):
            self._delivered(news.key, client, what)
        elif isinstance(what, Fail):
            client.end(what.failure.kind.value, now, what.failure.detail)
        elif isinstance(what, Retry):
            self.noticed_at.append(now)

    def _delivered(self, key: int, client: Client, what: Deliver) -> None:
        assert client.outcome is None, f"tokens after {client.outcome}"
        client.tokens.extend(what.token_ids)
        num = len(client.tokens)
        assert client.tokens == client.expected[:num], f"wrong tokens up to {num - 1}"
        if what.finish is not None:
            assert num == len(client.expected), f"finished after {num} tokens"
            client.end("finished", self.clock.now)
        elif client.stop_at is not None and num >= client.stop_at:
            client.end("finished", self.clock.now)
            self.balancer.act(self.balancer.core.stop_hit, key, self.clock.now)

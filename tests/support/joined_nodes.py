"""A prefill and a decode engine as the real hosts wire them, with every thread made a plain call.

What a real engine does at one moment is one method here, so that a driver can choose the order of
everything that threads, transports and networks leave open.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import WorkerInfo
from bootstrap.messages import (
    BlocksDamaged,
    HandoffAccepted,
    HandoffRecord,
    Manifest,
    Message,
    Ping,
    Pong,
)
from decode.core import DecodeCore
from decode.instructions import DropSwap, InboundClosed, InboundOpened, TearDown
from decode.verifier import HandoffVerifier
from engine.core import PeerJoined, PeerLeft, Post, Received, StepPlan
from engine.limits import EngineLimits
from kv_transfer.digests import Blocks
from kv_transfer.ledger import PageLedger
from prefill.core import PrefillCore
from prefill.handoff import Digest
from prefill.handoffs import (
    BlocksComputed,
    Connect,
    Disconnect,
    EndTransfer,
    Handoffs,
    OpenTransfer,
    PassTime,
    PromptComputed,
    Submit,
)
from tests.support.cores import info_of
from tests.support.joined_memory import Memory

Truth = Mapping[bytes, Sequence[int]]


@dataclass(slots=True, eq=False)
class Write:
    """A write on its way; `doomed` when it can only fail any more."""

    source: Peer
    submit: Submit
    left: deque[tuple[int, int]] = field(default_factory=deque)
    doomed: bool = False
    corrupt: bool = False  # one page of it lands wrong, and it claims success


class _Node:
    """What both engines have: an inbox for the loop, a step in progress, posts to be sent."""

    role: Role

    def __init__(self, me: Peer, limits: EngineLimits) -> None:
        self.me = me
        self.info = info_of(me, self.role)
        self.limits = limits
        self.memory = Memory(limits.num_blocks, limits.block_size)
        self.inbox: deque[object] = deque()
        self.plan: StepPlan | None = None
        self.awake = True  # a round of the loop might do something
        self.posts: list[Post] = []
        self.digesting: deque[tuple[Blocks, Callable[[bytes], None]]] = deque()

    core: PrefillCore | DecodeCore
    ledger: PageLedger

    def has_work(self) -> bool:
        """Whether a round could plan a step."""
        raise NotImplementedError

    def digest(self) -> None:
        """The digester ends its oldest job."""
        blocks, on_digests = self.digesting.popleft()
        on_digests(self.memory.digests(blocks))

    def put(self, event: object) -> None:
        """An event for the loop."""
        self.inbox.append(event)
        self.awake = True

    def begin(self, now: float) -> None:
        """The first half of the loop's round: events, time, and a plan."""
        self.handle(now)
        self.core.tick(now)
        self.plan = self.core.plan(now)
        self.awake = self.plan is not None
        self.execute()

    def handle(self, now: float) -> None:
        """Events only."""
        while self.inbox:
            self.core.handle(self.inbox.popleft(), now)
        self.execute()

    def end(self, now: float, truth: Truth) -> None:
        """The second half: the step itself."""
        plan, self.plan = self.plan, None
        assert plan is not None
        for swap in plan.swaps:
            self.memory.carry_out(swap)
        rows = zip(plan.rooms, plan.chunks, strict=True)
        results = [self.memory.run(chunk, truth[room]) for room, chunk in rows]
        self.core.complete(plan, results, now)
        self.execute()

    def fail_step(self, now: float) -> None:
        """The step raises before it did anything."""
        plan, self.plan = self.plan, None
        assert plan is not None
        self.core.step_failed(plan, "the model raised", now)
        self.execute()

    def execute(self) -> None:
        """Carry out the core's instructions."""
        for instruction in self.core.drain():
            if isinstance(instruction, Post):
                self.posts.append(instruction)
            else:
                self.carry_out(instruction)

    def carry_out(self, instruction: object) -> None:
        raise NotImplementedError


class PrefillNode(_Node):
    """A prefill engine: core, handoffs, and the writes that its pump has in flight."""

    role = Role.PREFILL

    def __init__(self, me: Peer, limits: EngineLimits) -> None:
        super().__init__(me, limits)
        self.core: PrefillCore = PrefillCore(limits)
        self.ledger = self.core.ledger
        self.handoffs = Handoffs(verify=limits.verify_handoff)
        self.writes: list[Write] = []
        self.connected: set[str] = set()

    def receive(self, sender: Peer, message: Message) -> None:
        """As the mailbox's thread does it: what concerns handoffs goes past the loop."""
        if isinstance(message, Ping):
            self.posts.append(Post(sender, Pong()))
        elif isinstance(message, Manifest):
            self.handoffs.manifest(sender, message)
        elif isinstance(message, HandoffAccepted):
            self.handoffs.accepted(sender, message)
        elif isinstance(message, BlocksDamaged):
            self.handoffs.damaged(sender, message)
        else:
            self.put(Received(sender, message))
        self._carry_out_handoffs()

    def joined(self, info: WorkerInfo) -> None:
        """A decode engine is there."""
        if info.role is Role.DECODE:
            self.handoffs.decode_joined(info)
            self._carry_out_handoffs()

    def left(self, ref: WorkerRef, dead: bool) -> None:
        """A worker or balancer is gone."""
        self.put(PeerLeft(ref, dead))
        self.handoffs.decode_left(ref, dead)
        self._carry_out_handoffs()

    def written(self, write: Write, error: str | None) -> None:
        """The pump is done with a write."""
        self.writes.remove(write)
        self.handoffs.written(write.submit.room, write.submit.write, error)
        self._carry_out_handoffs()

    def carry_out(self, instruction: object) -> None:
        handoffs = self.handoffs
        if isinstance(instruction, OpenTransfer):
            handoffs.open(instruction)
        elif isinstance(instruction, BlocksComputed):
            handoffs.blocks_computed(instruction)
        elif isinstance(instruction, PromptComputed):
            handoffs.prompt_computed(instruction)
        elif isinstance(instruction, EndTransfer):
            handoffs.end(instruction.room)
        else:
            assert isinstance(instruction, PassTime)
            handoffs.tick(instruction.now)
        self._carry_out_handoffs()

    def _carry_out_handoffs(self) -> None:
        for instruction in self.handoffs.drain():
            if isinstance(instruction, Post):
                self.posts.append(instruction)
            elif isinstance(instruction, Submit):
                doomed = instruction.agent_name not in self.connected
                self.writes.append(Write(self.me, instruction, deque(instruction.pairs), doomed))
            elif isinstance(instruction, Digest):
                job = (instruction.blocks, partial(self._digested, instruction))
                self.digesting.append(job)
            elif isinstance(instruction, Connect):
                self.connected.add(instruction.metadata.agent_name)
            elif isinstance(instruction, Disconnect):
                self.connected.discard(instruction.agent_name)
                for write in self.writes:
                    write.doomed |= write.submit.agent_name == instruction.agent_name
            else:
                self.put(instruction)

    def _digested(self, digest: Digest, digests: bytes) -> None:
        self.handoffs.digested(digest, digests)
        self._carry_out_handoffs()

    def has_work(self) -> bool:
        load = self.core.load()
        return load.num_queued + load.num_running > 0

    def validate(self) -> None:
        self.core.validate()
        self.handoffs.validate()

    def leftovers(self) -> dict[str, object]:
        """What should be gone when every request has ended."""
        load = self.core.load()
        held = {state: n for state, n in load.pages.items() if n and state not in _IDLE}
        found = {
            "rooms": load.num_rooms,
            "pages": held,
            "handoffs": len(self.handoffs),
            "writes": len(self.writes),
        }
        return {name: value for name, value in found.items() if value}


_IDLE = ("free", "cached")


class DecodeNode(_Node):
    """A decode engine: core, and what its pump was asked."""

    role = Role.DECODE

    def __init__(self, me: Peer, limits: EngineLimits) -> None:
        super().__init__(me, limits)
        self.core: DecodeCore = DecodeCore(limits)
        self.ledger = self.core.scheduler.ledger
        self.open_inbound: list[bytes] = []
        self.tear_downs: list[TearDown] = []
        self.verifier = HandoffVerifier(self._submit_digests, self.put)

    def _submit_digests(self, blocks: Blocks, on_digests: Callable[[bytes], None]) -> None:
        self.digesting.append((blocks, on_digests))

    def receive(self, sender: Peer, message: Message) -> None:
        """All messages are the loop's; a record's bytes are looked at first."""
        if isinstance(message, HandoffRecord):
            self.verifier.check(sender, message)
        else:
            self.put(Received(sender, message))

    def joined(self, info: WorkerInfo) -> None:
        """A prefill engine is there."""
        if info.role is Role.PREFILL:
            self.put(PeerJoined(info))

    def left(self, ref: WorkerRef, dead: bool) -> None:
        """A worker or balancer is gone."""
        self.put(PeerLeft(ref, dead))

    def carry_out(self, instruction: object) -> None:
        if isinstance(instruction, InboundOpened):
            assert instruction.blocks.room not in self.open_inbound
            self.open_inbound.append(instruction.blocks.room)
            self.verifier.opened(instruction.blocks)
        elif isinstance(instruction, InboundClosed):
            self.verifier.closed(instruction.room)
            self.open_inbound.remove(instruction.room)
        elif isinstance(instruction, DropSwap):
            self.memory.copies.pop(instruction.room, None)
        else:
            assert isinstance(instruction, TearDown)
            self.tear_downs.append(instruction)

    def has_work(self) -> bool:
        scheduler = self.core.scheduler
        return bool(scheduler.admitting or scheduler.running or scheduler.retracted)

    def validate(self) -> None:
        self.core.validate()
        scheduler = self.core.scheduler
        incoming = {*scheduler.receiving, *self.core.quarantine.rooms()}
        writable = {room for room in incoming if scheduler.ledger.pages_of(room)}
        assert writable <= set(self.open_inbound) <= incoming, "the pump does not know"
        if self.plan is None:
            assert set(self.memory.copies) == set(scheduler.retracted), "copies and retractions"

    def leftovers(self) -> dict[str, object]:
        """What should be gone when every request has ended."""
        load = self.core.load()
        held = {state: n for state, n in load.pages.items() if n and state not in _IDLE}
        found = {
            "rooms": load.num_rooms,
            "pages": held,
            "quarantine": len(self.core.quarantine.rooms()),
            "inbound": len(self.open_inbound),
            "copies": len(self.memory.copies),
            "tear-downs": len(self.tear_downs),
        }
        return {name: value for name, value in found.items() if value}

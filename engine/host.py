"""One engine in one process: its threads and sockets around a core, from start to stop.

Threads: the loop (model steps, owns the core), the mailbox (receives and sends), the transfer pump (owns
the backend) and the bootstrap client (heartbeats). Only the loop computes, so none of the others waits
for a step. What differs between prefill and decode is an `EngineRole`.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import msgspec

from bootstrap.client import BootstrapClient, Registration
from bootstrap.commands import CommandAnswered, PrepareWeights, SetLogLevel
from bootstrap.directory import BalancerJoined, DirectoryEvent, Fenced, Joined, Left
from bootstrap.errors import LocalMisuse, RemoteFault
from bootstrap.identity import Peer, Role, WorkerRef, new_incarnation
from bootstrap.mailbox import Mailbox
from bootstrap.membership import WorkerInfo, WorkerLoad
from bootstrap.messages import FailureReason, Message, Ping, Pong
from bootstrap.security import Security
from engine.assembly import EngineParts, OnStage, build_engine, published_limits
from engine.beat import Beat
from engine.commands import ForgetWeights, UseWeights
from engine.core import BalancerIsMember, CompileGrammar, EngineCore, GrammarCompiled, Received
from engine.grammar_compiler import Grammar
from engine.grammar_probe import GrammarUnchecked
from engine.limits import EngineLimits
from engine.loop import EngineLoop
from engine.reload import WeightReloader
from engine.settings import EngineSettings
from kv_transfer.digests import Digester
from kv_transfer.pump import TransferPump
from kv_transfer.severing import host_of, is_deserted, sever

STUCK_STEP_S = 300.0  # no step of a sound engine takes so long
_WATCH_INTERVAL_S = 1.0
LAST_ROOMS_S = 30.0  # for the rooms of an engine that gives up; streams go on at others

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Links:
    """What a role may use of its host; all but `drop_swap` is thread safe."""

    post: Callable[[Peer, Message], None]
    put: Callable[[object], None]  # an event for the core
    pump: TransferPump
    drop_swap: Callable[[bytes], None]  # on the loop's thread only
    compile_grammar: Callable[[CompileGrammar], None]
    block_bytes: int
    digester: Digester
    give_up: Callable[[str], None]  # end this life, once its rooms have
    sever: Callable[[Peer], None]  # cut a dead peer's host off, if nobody else is there


class EngineRole(Protocol):
    """What makes an engine a prefill or a decode engine."""

    @property
    def role(self) -> Role:
        """Its role in the cluster."""
        ...

    @property
    def core(self) -> EngineCore:
        """Its pure part."""
        ...

    def execute(self, instruction: object) -> None:
        """Carry out what the core put out; on the loop's thread."""
        ...

    def on_message(self, sender: Peer, message: Message) -> None:
        """On the mailbox's thread."""
        ...

    def on_joined(self, info: WorkerInfo) -> None:
        """A worker whose KV contract and transport equal ours, perhaps again; on any thread."""
        ...

    def on_left(self, ref: WorkerRef, dead: bool) -> None:
        """A worker is gone; on the client's thread."""
        ...

    def on_written(self, tag: object, error: str | None) -> None:
        """A write ended; on the pump's thread."""
        ...


RoleFactory = Callable[[EngineLimits, Callable[[], Links]], EngineRole]


class EngineHost:
    """Started once, stopped once; a new life is a new process and a new incarnation."""

    def __init__(self, settings: EngineSettings, make_role: RoleFactory) -> None:
        self.settings = settings
        self.ref = WorkerRef(settings.worker_id, new_incarnation())
        self._make_role = make_role
        self._lock = threading.Lock()  # guards the next two
        self._stopped = False
        self._closers: ExitStack | None = None
        self._closing = threading.Lock()  # held by the one who closes
        self._ended = threading.Event()
        self._crash: BaseException | None = None

    @property
    def peer(self) -> Peer:
        """Who this is and where its inbox listens; valid after `start`."""
        return self._mailbox.peer

    @property
    def core(self) -> EngineCore:
        """The core, for inspection; valid after `start`."""
        return self._role.core

    def start(self, on_stage: OnStage | None = None) -> None:
        """Load the model, open the wire, and register as soon as the bootstrap service is there.

        Raises ConfigError for what the settings cannot do, TransferError when the transport refuses.
        """
        say = on_stage or (lambda stage: logger.info("%s: %s", self.ref, stage))
        agent_name = f"{self.ref.worker_id}-{self.ref.incarnation}"
        with ExitStack() as closers:
            parts = build_engine(self.settings, agent_name, say)
            closers.callback(parts.backend.close)
            closers.callback(parts.grammars.close)
            self._role = self._make_role(parts.limits, lambda: self._links)
            self._loop = EngineLoop(
                self._role.core, parts.stepper, self._execute, lambda: self._client.beat()
            )
            self._reloader = WeightReloader(self.settings, parts.stepper, self._loop.inbox.put)
            self._open_wire(parts, closers)
            with self._lock:
                if self._stopped:
                    return
                self._start_threads(closers)
                self._closers = closers.pop_all()
        say(f"serving on {self.peer.endpoint}, pages by {parts.backend.transport}")

    @property
    def num_known_workers(self) -> int:
        """Members of the cluster that this engine has heard of, itself included."""
        return len(self._client.members())

    def load(self) -> WorkerLoad:
        """What the next heartbeat says: the core's load, and what wire and transport counted."""
        load = self._loop.load
        wire = {f"wire_{name}": count for name, count in self._mailbox.counters().items()}
        moved = {f"transfer_{name}": int(n) for name, n in self._pump.stats().items()}
        return msgspec.structs.replace(load, counters={**load.counters, **wire, **moved})

    def wait(self) -> str:
        """Block until the engine ends and tell what its end came to; raises what broke it.

        An engine with a dead thread, or with a step that does not end, would look alive and serve
        nobody: that breaks it too.
        """
        beat, num_rounds, moved_at = Beat.from_environment(), 0, time.monotonic()
        try:
            while not self._ended.wait(_WATCH_INTERVAL_S):
                if self._loop.num_rounds != num_rounds:
                    beat.touch()
                    num_rounds, moved_at = self._loop.num_rounds, time.monotonic()
                elif time.monotonic() - moved_at >= STUCK_STEP_S:
                    raise LocalMisuse(f"{self.ref}: a step does not end: {STUCK_STEP_S:.0f} s")
                dead = [name for name, alive in self._threads_alive().items() if not alive]
                if dead and not self._stopped:
                    raise LocalMisuse(f"{self.ref}: the thread of the {dead[0]} ended")
        finally:
            beat.end()
        if self._crash is not None:
            raise self._crash
        return self._loop.farewell

    def drain(self, deadline_s: float) -> None:
        """Make `wait` return once every room that is here has ended, or `deadline_s` from now.

        No new room is taken, and balancers hear so at once; rooms left at the deadline go on at other
        engines. Idempotent: the first deadline counts. Safe in a signal handler; `stop` must follow.
        """
        self._loop.drain(deadline_s)

    def request_stop(self) -> None:
        """Make `wait` return; safe in a signal handler. `stop` must follow."""
        self._loop.stop()

    def stop(self) -> None:
        """End every room, say goodbye, release threads, sockets and memory.

        Idempotent; every call returns when that is done.
        """
        with self._closing:
            with self._lock:
                self._stopped = True
                closers, self._closers = self._closers, None
            if closers is not None:
                closers.close()
            self._ended.set()

    # --- inner ---------------------------------------------------------------------------------

    def _threads_alive(self) -> dict[str, bool]:
        return {
            "transfer pump": self._pump.is_alive,
            "digester": self._digester.is_alive,
            "mailbox": self._mailbox.is_alive,
            "bootstrap client": self._client.is_alive,
        }

    def _open_wire(self, parts: EngineParts, closers: ExitStack) -> None:
        settings = self.settings
        security = Security.from_file(settings.secret_file) if settings.secret_file else None
        self._pump = TransferPump(parts.backend, self._role.on_written)
        self._digester = Digester(parts.arena, parts.layout.block_bytes)
        self._mailbox = Mailbox(self.ref, settings.bind_host, self._on_message, security)
        self._links = Links(
            post=self._mailbox.post,
            put=self._loop.inbox.put,
            pump=self._pump,
            drop_swap=parts.stepper.swap.drop,
            compile_grammar=lambda instruction: self._compile_grammar(parts, instruction),
            block_bytes=parts.layout.block_bytes,
            digester=self._digester,
            give_up=self._give_up,
            sever=self._sever,
        )
        self._info = WorkerInfo(
            peer=self.peer,
            role=self._role.role,
            model=settings.model_name,
            contract=parts.contract,
            limits=published_limits(parts.limits),
            transfer=parts.backend.metadata(),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        registration = Registration(self._info, self.load)
        self._client = BootstrapClient(
            settings.bootstrap, self.peer, security, self._on_member, registration
        )
        # In the order of a stop, last to first: to unregister says that no write will follow.
        closers.callback(self._client.stop, unregister=True)
        closers.callback(self._pump.stop)
        closers.callback(self._mailbox.stop)
        closers.callback(self._digester.stop)

    def _compile_grammar(self, parts: EngineParts, instruction: CompileGrammar) -> None:
        def done(outcome: Grammar | BaseException) -> None:
            if isinstance(outcome, Grammar):
                event = GrammarCompiled(instruction.room, outcome)
            else:
                # Whoever is too busy to tell is asked again, here or elsewhere, until the deadline.
                is_busy = isinstance(outcome, GrammarUnchecked)
                reason = FailureReason.QUEUE_FULL if is_busy else FailureReason.BAD_REQUEST
                event = GrammarCompiled(instruction.room, None, f"grammar: {outcome}", reason)
            self._loop.inbox.put(event)

        parts.grammars.submit(instruction.spec, done)

    def _start_threads(self, closers: ExitStack) -> None:
        loop = threading.Thread(target=self._run, name=f"loop-{self.ref}", daemon=True)
        self._pump.start()
        self._digester.start()
        loop.start()
        closers.callback(self._client.beat)
        closers.callback(loop.join)
        closers.callback(self._loop.stop)
        self._mailbox.start()
        self._client.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            logger.exception("%s: the engine loop broke", self.ref)
            self._crash = error
        finally:
            self._ended.set()

    def _give_up(self, detail: str) -> None:
        """Leave with an error: whoever watches over engines then starts a new one in new memory."""
        logger.error("%s gives up: %s", self.ref, detail)
        self._crash = RemoteFault(f"{self.ref} gave up: {detail}")
        self._loop.drain(LAST_ROOMS_S)

    def _sever(self, dead: Peer) -> None:
        living = [member.info.peer.endpoint for member in self._client.members()]
        living += [member.info.peer.endpoint for member in self._client.balancers()]
        if is_deserted(dead.endpoint, [self.peer.endpoint, self.settings.bootstrap, *living]):
            try:
                num_cut = sever(host_of(dead.endpoint))
            except OSError as error:  # the settling time alone has to do
                logger.warning("%s: the host of %s is not cut off: %s", self.ref, dead.ref, error)
            else:
                logger.info(
                    "%s: shut down %d connections with the host of %s", self.ref, num_cut, dead.ref
                )

    def _on_message(self, sender: Peer, message: Message) -> None:
        """On the mailbox's thread."""
        if isinstance(message, Ping):
            self._mailbox.post(sender, Pong())
            if not self._loop.inbox.is_full:
                self._loop.inbox.put(Received(sender, message))
        elif isinstance(message, SetLogLevel):
            logging.getLogger().setLevel(message.level.upper())
            self._mailbox.post(sender, CommandAnswered(message.command))
        elif isinstance(message, PrepareWeights):
            self._reloader.prepare(sender, message)
        elif not self._loop.inbox.is_full:  # else it is lost, as a network may lose it
            self._role.on_message(sender, message)

    def _execute(self, instruction: object) -> None:
        """On the loop's thread."""
        if isinstance(instruction, UseWeights):
            self._change_contract(self._reloader.use(instruction))
        elif isinstance(instruction, ForgetWeights):
            self._reloader.forget(instruction)
        else:
            self._role.execute(instruction)

    def _change_contract(self, model_digest: str) -> None:
        """Register with other weights, and look anew at whom that makes partners."""
        contract = msgspec.structs.replace(self._info.contract, model_digest=model_digest)
        self._info = msgspec.structs.replace(self._info, contract=contract)
        self._client.change(self._info)
        for member in self._client.members():
            self._meet(member.info)

    def _meet(self, info: WorkerInfo) -> None:
        same_transport = info.transfer.backend == self._info.transfer.backend
        if info.contract == self._info.contract and same_transport:
            self._role.on_joined(info)

    def _on_member(self, event: DirectoryEvent) -> None:
        if isinstance(event, Joined):
            self._meet(event.member.info)
        elif isinstance(event, BalancerJoined):
            self._loop.inbox.put(BalancerIsMember(event.member.info.peer.ref))
        elif isinstance(event, Left):
            logger.warning("%s left: %s", event.ref, event.reason.value)
            self._role.on_left(event.ref, event.dead)
            if event.dead:
                self._mailbox.forget(event.endpoint)
        elif isinstance(event, Fenced):
            self._crash = RemoteFault(f"{self.ref} was declared ended: {event.reason.value}")
            self._loop.stop()

"""One process of a real cluster, forked from a server that has imported everything already.

Owns what a test may do inside such a process: give its inbox another address, and hold it before or
after a step of the protocol. The role itself is the product's, unchanged.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from bootstrap.client import BootstrapClient
from bootstrap.identity import Peer, WorkerRef
from bootstrap.mailbox import Mailbox
from bootstrap.messages import Message, TokenBatch
from cluster.balancer.serve import run_balancer
from cluster.balancer.settings import BalancerSettings
from cluster.bootstrap_host import BootstrapHost, BootstrapSettings
from cluster.processes import die_with_parent
from decode.worker import DecodeWorker
from engine.settings import EngineSettings
from kv_transfer.pump import TransferPump
from prefill.worker import PrefillWorker

WRITE = "Write"  # a step of the protocol that is no message


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a process is. `address` is where others are told to find its inbox; None: where it is."""

    role: str  # prefill, decode, balancer or bootstrap
    settings: dict[str, Any]
    log_path: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop the thread that comes to `step`, before or after it, the `count`-th time.

    With `position` only tokens of that output position count, and none that is its stream's last.
    """

    step: str  # a message's class name, or WRITE
    after: bool = False
    count: int = 1
    position: int | None = None

    def is_at(self, step: str, message: Message | None, *, after: bool) -> bool:
        """Whether this is the step."""
        if (self.step, self.after) != (step, after):
            return False
        if self.position is None or not isinstance(message, TokenBatch):
            return self.position is None
        return any(r.position == self.position and r.finish is None for r in message.rooms)


@dataclass(slots=True)
class _Holds:
    """At most one hold at a time; the parent hears of it and says when to go on."""

    parent: Connection
    _hold: Hold | None = None
    _num_passed: int = 0
    _go: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listen(self) -> None:
        """On a thread of its own: a Hold arms, None lets go."""
        while True:
            try:
                command: Hold | None = self.parent.recv()
            except (EOFError, OSError):
                return
            with self._lock:
                self._go.set()
                self._go = threading.Event()
                self._hold, self._num_passed = command, 0
                self.parent.send(("armed", ""))

    def pass_by(
        self, step: str, towards: str, message: Message | None = None, *, after: bool
    ) -> None:
        """On the thread that does `step` towards a worker."""
        hold = self._hold
        if hold is None or not hold.is_at(step, message, after=after):
            return
        with self._lock:
            self._num_passed += 1
            if self._hold is not hold or self._num_passed != hold.count:
                return
            go = self._go
            self.parent.send(("held", towards))
        go.wait()


def run_child(spec: ChildSpec, parent: Connection) -> None:
    """The process, until SIGTERM."""
    die_with_parent(os.getppid())
    log = os.open(spec.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s", force=True
    )
    holds = _Holds(parent)
    threading.Thread(target=holds.listen, daemon=True).start()
    _hold_steps(holds)
    if spec.address is not None:
        _listen_elsewhere(spec.address, parent)
    _ROLES[spec.role](spec.settings, parent)


def _hold_steps(holds: _Holds) -> None:
    post, send, submit = Mailbox.post, BootstrapClient._send, TransferPump._begin_write

    def held_post(self: Mailbox, peer: Peer, message: Message) -> None:
        step, towards = type(message).__name__, peer.ref.worker_id
        holds.pass_by(step, towards, message, after=False)
        post(self, peer, message)
        holds.pass_by(step, towards, message, after=True)

    def held_send(self: BootstrapClient, message: Message) -> bool:
        step = type(message).__name__
        holds.pass_by(step, "bootstrap", after=False)
        sent = send(self, message)
        holds.pass_by(step, "bootstrap", after=True)
        return sent

    def held_write(self: TransferPump, write: Any) -> None:
        towards = write.agent_name.partition("-")[0]
        holds.pass_by(WRITE, towards, after=False)
        submit(self, write)
        holds.pass_by(WRITE, towards, after=True)

    Mailbox.post = held_post  # type: ignore[method-assign]
    BootstrapClient._send = held_send  # type: ignore[method-assign]
    TransferPump._begin_write = held_write  # type: ignore[method-assign]


def _listen_elsewhere(address: str, parent: Connection) -> None:
    """Tell everybody `address`, and the parent where the inbox really is."""
    begin = Mailbox.__init__

    def begin_elsewhere(self: Mailbox, me: WorkerRef, *args: Any, **kwargs: Any) -> None:
        begin(self, me, *args, **kwargs)
        parent.send(("bound", self.peer.endpoint))
        self.peer = Peer(me, address)

    Mailbox.__init__ = begin_elsewhere  # type: ignore[method-assign]


def _engine(kind: type[PrefillWorker] | type[DecodeWorker]) -> "_Role":
    def run(settings: dict[str, Any], parent: Connection) -> None:
        worker = kind(EngineSettings(**settings))
        signal.signal(signal.SIGTERM, lambda *_: worker.request_stop())
        worker.start()
        parent.send(("serving", worker.ref.incarnation))
        worker.wait()
        worker.stop()

    return run


def _balancer(settings: dict[str, Any], parent: Connection) -> None:
    parent.send(("serving", ""))
    run_balancer(BalancerSettings(**settings))


def _bootstrap(settings: dict[str, Any], parent: Connection) -> None:
    host = BootstrapHost(BootstrapSettings(**settings))
    signal.signal(signal.SIGTERM, lambda *_: host.stop())
    host.start()
    parent.send(("serving", ""))
    host.wait()


_Role = Callable[[dict[str, Any], Connection], None]
_ROLES: dict[str, _Role] = {
    "prefill": _engine(PrefillWorker),
    "decode": _engine(DecodeWorker),
    "balancer": _balancer,
    "bootstrap": _bootstrap,
}

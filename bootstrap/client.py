"""A process's link to the bootstrap service: registers, heartbeats, and keeps a directory.

Owns one thread and one DEALER, so heartbeats go on while the process computes. What to say and when
is the session's, who is a member the directory's.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from bootstrap import codec, sockets
from bootstrap.counts import Counts
from bootstrap.directory import DirectoryEvent
from bootstrap.errors import BootstrapUnreachable, ConfigError, LocalMisuse, WireError
from bootstrap.identity import Peer, WorkerRef
from bootstrap.membership import (
    BalancerInfo,
    BalancerMember,
    Evict,
    Member,
    Unregister,
    WorkerInfo,
    WorkerLoad,
)
from bootstrap.messages import Envelope, Message
from bootstrap.security import Security
from bootstrap.session import Session

MAX_EVICTIONS = 1024  # waiting for the service to be back
STOP_TIMEOUT_S = 5.0

_BATCH = 256
_POLL_S = 0.25
_COUNTS = (
    "received",
    "undecodable",
    "misaddressed",
    "unsent",  # the service was not connected, or its queue was full
    "callback_errors",  # `on_event` or `load` raised
    "handshakes_failed",  # the cluster secrets differ, or one side has none
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a member tells: its facts, and its load in every heartbeat, on the client's thread."""

    info: WorkerInfo | BalancerInfo
    load: Callable[[], WorkerLoad]


class BootstrapClient:
    """Live between `start` and `stop`. The service may start later, or again, at its endpoint.

    While the service is out of reach `members` stays as it was last known.
    """

    def __init__(
        self,
        service_endpoint: str,
        me: Peer,
        security: Security | None,
        on_event: Callable[[DirectoryEvent], None],
        registration: Registration | None = None,
    ) -> None:
        """`on_event` runs on the client's thread.

        Without `registration` the client only subscribes.
        """
        if registration is not None and registration.info.peer != me:
            raise LocalMisuse(f"{me.ref} registers {registration.info.peer.ref}")
        self._service_endpoint = service_endpoint
        self._me = me
        self._security = security
        self._on_event = on_event
        self._load = registration.load if registration else WorkerLoad
        self._last_load = WorkerLoad()
        info = registration.info if registration else None
        self._session = Session(info, time.monotonic())  # the client's thread only, once started
        self._counts = Counts(_COUNTS)
        self._members: tuple[Member, ...] = ()
        self._balancers: tuple[BalancerMember, ...] = ()
        self._ready = threading.Event()
        self._lock = threading.Lock()  # guards those below
        self._evictions: deque[WorkerRef] = deque(maxlen=MAX_EVICTIONS)
        self._beat_asked = False
        self._changed: WorkerInfo | BalancerInfo | None = None
        self._stopping = False
        self._goodbye = False
        self._thread: threading.Thread | None = None

    @property
    def connected(self) -> bool:
        """Whether the service was heard within the last lease; thread safe."""
        return self._session.connected(time.monotonic())

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; thread safe."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def members(self) -> tuple[Member, ...]:
        """All engines; their loads are the latest unless we are one of them. Thread safe."""
        return self._members

    def balancers(self) -> tuple[BalancerMember, ...]:
        """All load balancers, with loads as for `members`. Thread safe."""
        return self._balancers

    def counters(self) -> dict[str, int]:
        """Messages so far, by what became of them; thread safe."""
        return self._counts.read()

    def start(self) -> None:
        """Begin; does not wait for the service. Raises ConfigError when its endpoint is none."""
        self._context = sockets.new_context()
        try:
            self._socket = sockets.open_outlet(
                self._context, self._service_endpoint, self._security, queue_unconnected=False
            )
        except zmq.ZMQError as error:
            self._context.term()
            raise ConfigError(f"bootstrap={self._service_endpoint!r}: {error}") from error
        self._watch = sockets.HandshakeWatch(self._socket)
        self._wake = sockets.Wake()
        name = f"bootstrap-client-{self._me.ref}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Block until registered, if registering, and the members are known.

        Raises BootstrapUnreachable.
        """
        if not self._ready.wait(timeout_s):
            raise BootstrapUnreachable(f"{self._service_endpoint}: no answer in {timeout_s} s")

    def beat(self) -> None:
        """Heartbeat now: the load changed in a way that others should know at once."""
        with self._lock:
            self._beat_asked = True
            self._nudge()

    def change(self, info: WorkerInfo | BalancerInfo) -> None:
        """Register with other facts about the same incarnation."""
        with self._lock:
            self._changed = info
            self._nudge()

    def evict(self, ref: WorkerRef) -> None:
        """Tell the service that `ref`'s process ended; waits for the service to be back."""
        with self._lock:
            self._evictions.append(ref)
            self._nudge()

    def stop(self, unregister: bool = True) -> None:
        """End the link. Idempotent; returns within seconds.

        With `unregister` the cluster hears that this worker is gone for good, which must only be
        said after its last write into any peer's memory.
        """
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping, self._goodbye = True, unregister
            if thread is None:
                return
            self._wake.set()
        if thread is not threading.current_thread():
            thread.join(STOP_TIMEOUT_S)

    def _nudge(self) -> None:
        if self._thread is not None:
            self._wake.set()

    # --- the client's own thread ---------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        for readable in (self._socket, self._watch.socket, self._wake.read_fd):
            poller.register(readable, zmq.POLLIN)
        try:
            while not self._stopping:
                wait_s = min(_POLL_S, self._session.due_at - time.monotonic())
                poller.poll(math.ceil(max(0.0, wait_s) * 1000))
                self._wake.clear()
                self._note_failed(self._watch.drain())
                self._receive()
                self._speak()
            if self._goodbye:
                self._send(Unregister())
        finally:
            with self._lock:
                self._thread = None
            self._watch.close()
            self._socket.close()
            self._wake.close()
            self._context.term()  # waits while the socket lingers, no longer

    def _receive(self) -> None:
        for _ in range(_BATCH):
            try:
                envelope = codec.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            except WireError as error:
                self._counts.add("undecodable")
                log.debug("dropped: %s", error)
                continue
            if envelope.recipient != self._me.ref:
                self._counts.add("misaddressed")
                continue
            self._counts.add("received")
            service = envelope.sender.ref
            self._emit(self._session.receive(service, envelope.body, time.monotonic()))
        self._emit(self._session.tick(time.monotonic()))
        if self._session.ready:
            self._ready.set()

    def _emit(self, events: list[DirectoryEvent]) -> None:
        directory = self._session.directory
        self._members, self._balancers = directory.members, directory.balancers
        for event in events:
            try:
                self._on_event(event)
            except Exception:  # a server loop's edge: an owner's bug must not end the lease
                self._counts.add("callback_errors")
                log.exception("%s: on_event(%s)", self._me.ref, type(event).__name__)

    def _speak(self) -> None:
        with self._lock:
            beat_asked, self._beat_asked = self._beat_asked, False
            changed, self._changed = self._changed, None
            eviction = self._evictions[0] if self._evictions else None
        if changed is not None:
            self._session.change(changed)
        now = time.monotonic()
        if beat_asked or now >= self._session.due_at:
            beat = self._session.beat(self._current_load(), now)
            if not all(self._send(message) for message in beat):
                self._session.unsent(now)
        while eviction is not None and self._send(Evict(eviction)):
            with self._lock:
                if self._evictions and self._evictions[0] == eviction:
                    self._evictions.popleft()
                eviction = self._evictions[0] if self._evictions else None

    def _current_load(self) -> WorkerLoad:
        try:
            self._last_load = self._load()
        except Exception:  # the same edge
            self._counts.add("callback_errors")
            log.exception("%s: load", self._me.ref)
        return self._last_load

    def _send(self, message: Message) -> bool:
        try:
            self._socket.send(codec.encode(Envelope(self._me, None, message)), zmq.NOBLOCK)
        except zmq.Again:
            self._counts.add("unsent")
            return False
        return True

    def _note_failed(self, num_failed: int) -> None:
        if num_failed and self._counts.add("handshakes_failed", num_failed) == num_failed:
            log.warning(
                "%s: handshake with %s failed: the cluster secrets differ, or one side has none",
                self._me.ref,
                self._service_endpoint,
            )

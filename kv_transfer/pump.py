"""The thread that owns a transport: it starts writes, watches them, and reports how each ended.

It knows backends and runs of bytes, not rooms or pages. While nothing moves it blocks and uses no CPU;
while something may move it polls, the more seldom the longer nothing happens.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bootstrap.errors import TransferError
from bootstrap.membership import TransferMetadata
from kv_transfer.backends.port import TransferBackend, WriteId
from kv_transfer.layout import Run

logger = logging.getLogger(__name__)

MIN_PAUSE_S = 50e-6
MAX_PAUSE_S = 2e-3
PAUSE_GROWTH = 1.3
BUSY_CALL_S = 30e-6  # a poll that took longer moved bytes; an idle one takes a few microseconds
LEAVE_GRACE_S = 1.0  # how long a removed peer's writes may still end by themselves

_STOPPED = "the transfer pump has stopped"

OnOutcome = Callable[[object, str | None], None]
OnDone = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Submit:
    tag: object
    agent_name: str
    runs: Sequence[Run]
    since: float

    @property
    def num_bytes(self) -> int:
        return sum(run.num_bytes for run in self.runs)


@dataclass(frozen=True, slots=True)
class _AddPeer:
    metadata: TransferMetadata


@dataclass(frozen=True, slots=True)
class _RemovePeer:
    agent_name: str
    on_done: OnDone


@dataclass(frozen=True, slots=True)
class _ChangeInbound:
    by: int


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Submit | _AddPeer | _RemovePeer | _ChangeInbound | _Stop


@dataclass(slots=True)
class _Leaving:
    """A peer that takes no new writes; the backend lets go of it at `deadline` at the latest.

    `returning` is set when it was added again meanwhile.
    """

    deadline: float
    waiting: list[OnDone] = field(default_factory=list)
    torn_down: bool = False
    returning: TransferMetadata | None = None


class TransferPump:
    """Every accepted `submit` gets exactly one outcome, on the pump's thread.

    After its outcome a write touches the peer's memory no more. Methods may be called by any thread and
    do not wait for the transport; they take effect in the order of the calls.
    """

    def __init__(self, backend: TransferBackend, on_outcome: OnOutcome) -> None:
        self._backend = backend
        self._on_outcome = on_outcome
        self._thread = threading.Thread(target=self._run, name="transfer-pump", daemon=True)
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._gate = threading.Lock()  # a command is either in the queue before the end, or refused
        self._open = True
        self._stopping = False
        self._num_inbound = 0
        self._in_flight: dict[WriteId, _Submit] = {}
        self._leaving: dict[str, _Leaving] = {}
        self._refused: dict[str, str] = {}
        self._stats = {"num_writes": 0, "num_failed": 0, "written_bytes": 0, "in_flight_s": 0.0}

    def start(self) -> None:
        """From now on the backend belongs to the pump's thread, which closes it at the end."""
        self._thread.start()

    def stop(self) -> None:
        """Close the backend and end the thread; writes in flight end with an error. Idempotent.

        Must not be called by `on_outcome` or an `on_done`.
        """
        self._enqueue(_Stop())
        if self._thread.ident is None:
            self._shut_down()
        else:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, tag: object, agent_name: str, runs: Sequence[Run]) -> None:
        """Write `runs` to the peer; `tag` comes back with the outcome.

        Whatever the transport refuses is an outcome too. Raises TransferError only once the pump has
        stopped: then no outcome will come.
        """
        if not self._enqueue(_Submit(tag, agent_name, tuple(runs), time.monotonic())):
            raise TransferError(_STOPPED)

    def add_peer(self, metadata: TransferMetadata) -> None:
        """Make a peer known. A refusal is logged, and told by the outcome of each write to it."""
        self._enqueue(_AddPeer(metadata))

    def remove_peer(self, agent_name: str, on_done: OnDone | None = None) -> None:
        """Let the peer's writes end, or end them after a grace, then drop the connection.

        `on_done` is called on the pump's thread when no write of ours will reach that peer any more;
        for an unknown peer that is at once. A stopped pump calls it here.
        """
        done = on_done or _nothing
        if not self._enqueue(_RemovePeer(agent_name, done)):
            done()

    def open_inbound(self) -> None:
        """A peer may write to us from now on. Counted; each needs its `close_inbound`."""
        self._enqueue(_ChangeInbound(1))

    def close_inbound(self) -> None:
        """The counterpart of `open_inbound`."""
        self._enqueue(_ChangeInbound(-1))

    def stats(self) -> dict[str, float]:
        """Totals of ended writes: `num_writes`, of these `num_failed`, `written_bytes` of the others,
        and `in_flight_s`, the time from each `submit` to its outcome added up."""
        return dict(self._stats)

    # --- the pump's thread ---------------------------------------------------------------------

    def _enqueue(self, command: _Command) -> bool:
        with self._gate:
            if self._open:
                self._commands.put(command)
            return self._open

    def _run(self) -> None:
        try:
            pause = MIN_PAUSE_S
            while not self._stopping:
                commanded = self._take_commands(pause if self._is_active else None)
                busy = self._turn()
                pause = MIN_PAUSE_S if commanded or busy else min(pause * PAUSE_GROWTH, MAX_PAUSE_S)
        finally:  # also when a callback raised: its error then ends the thread, but strands nobody
            self._shut_down()

    @property
    def _helps_inbound(self) -> bool:
        return self._num_inbound > 0 and self._backend.needs_target_progress

    @property
    def _is_active(self) -> bool:
        return self._helps_inbound or bool(self._in_flight)

    def _take_commands(self, timeout_s: float | None) -> bool:
        """Wait for a command and carry out all there are; whether there was one."""
        commanded = False
        try:
            command = self._commands.get(timeout=timeout_s)
            while True:
                commanded = True
                self._carry_out(command)
                if self._stopping:
                    break
                command = self._commands.get_nowait()
        except queue.Empty:
            pass
        return commanded

    def _carry_out(self, command: _Command) -> None:
        if isinstance(command, _Submit):
            self._begin_write(command)
        elif isinstance(command, _AddPeer):
            self._add_peer(command.metadata)
        elif isinstance(command, _RemovePeer):
            self._remove_peer(command)
        elif isinstance(command, _ChangeInbound):
            self._num_inbound += command.by
        else:
            self._stopping = True

    def _turn(self) -> bool:
        """One look at the transport; whether anything happened."""
        began = time.monotonic()
        if self._helps_inbound:
            self._backend.progress()
        outcomes = self._backend.poll() if self._in_flight else []
        busy = bool(outcomes) or time.monotonic() - began > BUSY_CALL_S
        for outcome in outcomes:
            self._report(self._in_flight.pop(outcome.write_id), outcome.error)
        self._see_off()
        return busy

    def _begin_write(self, write: _Submit) -> None:
        if write.agent_name in self._leaving:
            self._report(write, f"peer {write.agent_name} is being removed")
            return
        try:
            write_id = self._backend.write(write.agent_name, write.runs)
        except TransferError as error:
            reason = self._refused.get(write.agent_name)
            self._report(write, f"{error}: {reason}" if reason else str(error))
        else:
            self._in_flight[write_id] = write

    def _add_peer(self, metadata: TransferMetadata) -> None:
        agent_name = metadata.agent_name
        if agent_name in self._leaving:
            self._leaving[agent_name].returning = metadata
            return
        try:
            self._backend.add_peer(metadata)
        except TransferError as error:
            logger.warning("transfer peer refused: %s", error)
            self._refused[agent_name] = str(error)
        else:
            self._refused.pop(agent_name, None)

    def _remove_peer(self, command: _RemovePeer) -> None:
        self._refused.pop(command.agent_name, None)
        fresh = _Leaving(time.monotonic() + LEAVE_GRACE_S)
        leaving = self._leaving.setdefault(command.agent_name, fresh)
        leaving.returning = None
        leaving.waiting.append(command.on_done)
        self._see_off()

    def _see_off(self) -> None:
        """Tear down the peers whose writes have ended or whose grace is over."""
        for agent_name, leaving in list(self._leaving.items()):
            is_writing = any(w.agent_name == agent_name for w in self._in_flight.values())
            is_late = time.monotonic() >= leaving.deadline
            if not leaving.torn_down and (is_late or not is_writing):
                self._backend.remove_peer(agent_name)
                leaving.torn_down = True
            if leaving.torn_down and not is_writing:
                del self._leaving[agent_name]
                for on_done in leaving.waiting:
                    on_done()
                if leaving.returning is not None:
                    self._add_peer(leaving.returning)

    def _report(self, write: _Submit, error: str | None) -> None:
        self._stats["num_writes"] += 1
        self._stats["in_flight_s"] += time.monotonic() - write.since
        if error is None:
            self._stats["written_bytes"] += write.num_bytes
        else:
            self._stats["num_failed"] += 1
        self._on_outcome(write.tag, error)

    def _shut_down(self) -> None:
        with self._gate:
            self._open = False
        self._backend.close()
        while self._in_flight:
            self._report(self._in_flight.popitem()[1], _STOPPED)
        for leaving in self._leaving.values():
            for on_done in leaving.waiting:
                on_done()
        while not self._commands.empty():
            command = self._commands.get_nowait()
            if isinstance(command, _Submit):
                self._report(command, _STOPPED)
            elif isinstance(command, _RemovePeer):
                command.on_done()


def _nothing() -> None:
    pass

"""The prefill engine's threads and sockets around its core."""

import threading
from collections.abc import Callable

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.messages import HandoffAccepted, Manifest, Message, WorkerInfo
from engine.core import Post, Received
from engine.host import EngineHost, Links
from engine.limits import EngineLimits
from engine.settings import EngineSettings
from kv_transfer.layout import merge_runs
from prefill.core import PrefillCore
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


class PrefillRole:
    """The core runs on the loop's thread; handoffs run on whichever thread brings them news.

    `_lock` guards `_handoffs` and keeps what it puts out in order.
    """

    role = Role.PREFILL

    def __init__(self, limits: EngineLimits, links: Callable[[], Links]) -> None:
        self.core = PrefillCore(limits)
        self._links = links
        self._handoffs = Handoffs()
        self._lock = threading.Lock()

    def execute(self, instruction: object) -> None:
        """Posts leave at once; the rest is for the handoffs."""
        if isinstance(instruction, Post):
            self._links().post(instruction.peer, instruction.message)
            return
        with self._lock:
            handoffs = self._handoffs
            if isinstance(instruction, OpenTransfer):
                handoffs.open(instruction)
            elif isinstance(instruction, BlocksComputed):
                handoffs.blocks_computed(instruction)
            elif isinstance(instruction, PromptComputed):
                handoffs.prompt_computed(instruction)
            elif isinstance(instruction, EndTransfer):
                handoffs.end(instruction.room)
            elif isinstance(instruction, PassTime):
                handoffs.tick(instruction.now)
            self._carry_out()

    def on_message(self, sender: Peer, message: Message) -> None:
        """Manifests and acknowledgements go past the loop: they must not wait for a step."""
        if isinstance(message, Manifest):
            with self._lock:
                self._handoffs.manifest(sender, message)
                self._carry_out()
        elif isinstance(message, HandoffAccepted):
            with self._lock:
                self._handoffs.accepted(sender, message)
        else:
            self._links().put(Received(sender, message))

    def on_joined(self, info: WorkerInfo) -> None:
        """Decode engines are whom we write to."""
        if info.role is Role.DECODE:
            with self._lock:
                self._handoffs.decode_joined(info)
                self._carry_out()

    def on_left(self, ref: WorkerRef, dead: bool) -> None:
        """Whether dead or out of reach: nothing new is written there."""
        with self._lock:
            self._handoffs.decode_left(ref, dead)
            self._carry_out()

    def on_written(self, tag: object, error: str | None) -> None:
        """The pump is done with a write."""
        assert isinstance(tag, Submit)
        with self._lock:
            self._handoffs.written(tag.room, tag.write, error)
            self._carry_out()

    def _carry_out(self) -> None:
        links = self._links()
        for instruction in self._handoffs.drain():
            if isinstance(instruction, Post):
                links.post(instruction.peer, instruction.message)
            elif isinstance(instruction, Submit):
                runs = merge_runs(list(instruction.pairs), links.block_bytes)
                links.pump.submit(instruction, instruction.agent_name, runs)
            elif isinstance(instruction, Connect):
                links.pump.add_peer(instruction.metadata)
            elif isinstance(instruction, Disconnect):
                links.pump.remove_peer(instruction.agent_name)
            else:
                links.put(instruction)


class PrefillWorker(EngineHost):
    """A prefill engine in this process."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings, PrefillRole)

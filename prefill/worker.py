"""The prefill engine's threads and sockets around its core."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.inspection import AskLedger
from bootstrap.membership import WorkerInfo
from bootstrap.messages import BlocksDamaged, HandoffAccepted, Manifest, Message
from engine.core import CompileGrammar, PeerLeft, Post, Received
from engine.host import EngineHost, Links
from engine.inspection import LedgerAsked
from engine.limits import EngineLimits
from engine.settings import EngineSettings
from kv_transfer.layout import merge_runs
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


class PrefillRole:
    """The core runs on the loop's thread; handoffs run on whichever thread brings them news.

    `_lock` guards `_handoffs` and keeps what it puts out in order.
    """

    role = Role.PREFILL

    def __init__(self, limits: EngineLimits, links: Callable[[], Links]) -> None:
        self.core = PrefillCore(limits)
        self._links = links
        self._handoffs = Handoffs(limits.block_bytes, verify=limits.verify_handoff)
        self._lock = threading.Lock()

    def execute(self, instruction: object) -> None:
        """Posts leave at once; the rest is for the handoffs."""
        if isinstance(instruction, Post):
            self._links().post(instruction.peer, instruction.message)
            return
        if isinstance(instruction, CompileGrammar):
            self._links().compile_grammar(instruction)
            return
        with self._locked() as handoffs:
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

    def on_message(self, sender: Peer, message: Message) -> None:
        """Manifests and acknowledgements go past the loop: they must not wait for a step."""
        if isinstance(message, Manifest):
            with self._locked() as handoffs:
                handoffs.manifest(sender, message)
        elif isinstance(message, HandoffAccepted):
            with self._locked() as handoffs:
                handoffs.accepted(sender, message)
        elif isinstance(message, BlocksDamaged):
            with self._locked() as handoffs:
                handoffs.damaged(sender, message)
        elif isinstance(message, AskLedger):
            with self._locked() as handoffs:
                self._links().put(LedgerAsked(sender, message, handoffs.views()))
        else:
            self._links().put(Received(sender, message))

    def on_joined(self, info: WorkerInfo) -> None:
        """Decode engines are whom we write to."""
        if info.role is Role.DECODE:
            with self._locked() as handoffs:
                handoffs.decode_joined(info)

    def on_left(self, ref: WorkerRef, dead: bool) -> None:
        """Whether dead or out of reach: nothing new is written there, and nothing done for it."""
        self._links().put(PeerLeft(ref, dead))
        with self._locked() as handoffs:
            handoffs.decode_left(ref, dead)

    def on_written(self, tag: object, error: str | None) -> None:
        """The pump is done with a write."""
        assert isinstance(tag, Submit)
        with self._locked() as handoffs:
            handoffs.written(tag.room, tag.write, error)

    def _on_digests(self, digest: Digest, digests: bytes) -> None:
        """The digester is done with a write's blocks; on its thread."""
        with self._locked() as handoffs:
            handoffs.digested(digest, digests)

    @contextmanager
    def _locked(self) -> Iterator[Handoffs]:
        """The handoffs at the present time; what they put out is carried out."""
        with self._lock:
            self._handoffs.pass_time(time.monotonic())
            yield self._handoffs
            self._carry_out()

    def _carry_out(self) -> None:
        links = self._links()
        for instruction in self._handoffs.drain():
            if isinstance(instruction, Post):
                links.post(instruction.peer, instruction.message)
            elif isinstance(instruction, Submit):
                runs = merge_runs(list(instruction.pairs), links.block_bytes)
                links.pump.submit(instruction, instruction.agent_name, runs)
            elif isinstance(instruction, Digest):
                links.digester.submit(instruction.blocks, partial(self._on_digests, instruction))
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

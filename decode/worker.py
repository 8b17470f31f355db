"""The decode engine's threads and sockets around its core."""

from collections.abc import Callable

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import WorkerInfo
from bootstrap.messages import HandoffRecord, Message
from decode.core import DecodeCore
from decode.instructions import DropSwap, GiveUp, InboundClosed, InboundOpened, TearDown, TornDown
from decode.verifier import HandoffVerifier
from engine.core import CompileGrammar, PeerJoined, PeerLeft, Post, Received
from engine.host import EngineHost, Links
from engine.limits import EngineLimits
from engine.settings import EngineSettings


class DecodeRole:
    """Everything is an event for the core; what it puts out goes to the wire or the pump."""

    role = Role.DECODE

    def __init__(self, limits: EngineLimits, links: Callable[[], Links]) -> None:
        self.core = DecodeCore(limits)
        self._links = links
        self._verifier = HandoffVerifier(
            lambda blocks, on_digests: links().digester.submit(blocks, on_digests),
            lambda event: links().put(event),
        )

    def execute(self, instruction: object) -> None:
        """Carry out one instruction of the core."""
        links = self._links()
        if isinstance(instruction, Post):
            links.post(instruction.peer, instruction.message)
        elif isinstance(instruction, InboundOpened):
            self._verifier.opened(instruction.blocks)
            links.pump.open_inbound()
        elif isinstance(instruction, InboundClosed):
            self._verifier.closed(instruction.room)
            links.pump.close_inbound()
        elif isinstance(instruction, DropSwap):
            links.drop_swap(instruction.room)
        elif isinstance(instruction, CompileGrammar):
            links.compile_grammar(instruction)
        elif isinstance(instruction, GiveUp):
            links.give_up(instruction.detail)
        elif isinstance(instruction, TearDown):
            self._tear_down(links, instruction)

    def _tear_down(self, links: Links, instruction: TearDown) -> None:
        def done() -> None:  # on the pump's thread, which the transport belongs to
            links.sever(instruction.writer)
            links.put(TornDown(instruction.writer.ref))

        links.pump.remove_peer(instruction.agent_name, done)

    def on_message(self, sender: Peer, message: Message) -> None:
        """All messages are the core's; what a record makes valid is looked at first."""
        if isinstance(message, HandoffRecord):
            self._verifier.check(sender, message)
        else:
            self._links().put(Received(sender, message))

    def on_joined(self, info: WorkerInfo) -> None:
        """Prefill engines are who writes to us."""
        if info.role is Role.PREFILL:
            self._links().put(PeerJoined(info))

    def on_left(self, ref: WorkerRef, dead: bool) -> None:
        """Rooms that wait for it, or are for it, end."""
        self._links().put(PeerLeft(ref, dead))

    def on_written(self, tag: object, error: str | None) -> None:
        """A decode engine writes nothing."""
        raise AssertionError(f"unexpected write {tag}")


class DecodeWorker(EngineHost):
    """A decode engine in this process."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings, DecodeRole)

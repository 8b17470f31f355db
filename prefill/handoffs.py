"""All rooms that this engine is handing off: manifests in, writes and handoff records out.

Pure. It runs beside the engine's step, not inside it, so that blocks leave and a finished handoff is
committed while the next chunk is still computing. It never touches the ledger: it tells the engine
when the last write that reads a room's pages is over (`TransferClosed`, once per opened room).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootstrap.identity import Peer, WorkerRef
from bootstrap.membership import TransferMetadata, WorkerInfo
from bootstrap.messages import (
    MAX_RESENDS,
    BlocksDamaged,
    FailureReason,
    HandoffAccepted,
    HandoffRecord,
    Manifest,
    PrefillStarted,
    WriterStopped,
)
from bootstrap.recent_rooms import RecentRooms
from engine.core import Post
from engine.inspection import TransferView
from kv_transfer.sender import (
    ENDED,
    Commit,
    Instruction,
    Sender,
    SendState,
    StartWrite,
    WriteFailed,
)
from prefill.handoff import Digest, Handoff

RESEND_INTERVAL_S = 1.0
STALL_S = 30.0  # a room none of whose writes ends for so long is given up
SILENCE_S = 30.0  # and so is one whose record nobody answers


@dataclass(frozen=True, slots=True)
class OpenTransfer:
    """From the engine: `room` computes into `pages` and will be handed off to `decode`."""

    room: bytes
    decode: Peer
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksComputed:
    """From the engine: the first `num_blocks` blocks of `room` are final."""

    room: bytes
    num_blocks: int


@dataclass(frozen=True, slots=True)
class PromptComputed:
    """From the engine: the whole prompt is computed; `record` lacks only its epoch."""

    room: bytes
    record: HandoffRecord


@dataclass(frozen=True, slots=True)
class EndTransfer:
    """From the engine: `room` ended; write nothing more."""

    room: bytes


@dataclass(frozen=True, slots=True)
class PassTime:
    """From the engine: it is `now`."""

    now: float


@dataclass(frozen=True, slots=True)
class TransferClosed:
    """To the engine: nothing reads the pages of `room` any more, `num_resent` of them twice."""

    room: bytes
    num_resent: int = 0


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """To the engine: `room` cannot be handed off."""

    room: bytes
    reason: FailureReason
    detail: str


@dataclass(frozen=True, slots=True)
class Submit:
    """To the pump: write number `write` of `room`."""

    room: bytes
    write: int
    agent_name: str
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """To the pump: a decode engine that may be written to."""

    metadata: TransferMetadata


@dataclass(frozen=True, slots=True)
class Disconnect:
    """To the pump: tear down the connection; its writes in flight come back as failed."""

    agent_name: str


class Handoffs:
    """A room is here from OpenTransfer until it is committed and accepted, or ended and drained.

    With `verify` records carry digests, and pages stay until the decode engine answers: it may want
    blocks once more. It answers without needing anything, so nobody waits for long.
    """

    def __init__(self, block_bytes: int = 0, *, verify: bool = False) -> None:
        self._block_bytes = block_bytes
        self._verify = verify
        self._now = 0.0
        self._rooms: dict[bytes, Handoff] = {}
        self._agents: dict[WorkerRef, str] = {}
        self._cut_short = RecentRooms()  # ended, and not all of their writes completed
        self._out: list[object] = []

    def drain(self) -> list[object]:
        """Instructions since the last call, in order."""
        out, self._out = self._out, []
        return out

    def __len__(self) -> int:
        return len(self._rooms)

    def pass_time(self, now: float) -> None:
        """It is `now`, for what comes next."""
        self._now = now

    def tick(self, now: float) -> None:
        """Let time pass: what nobody answered is sent again, what does not move is given up.

        The pages of a room given up stay until its writes really end.
        """
        self._now = now
        for room, handoff in list(self._rooms.items()):
            moving = handoff.sender.num_in_flight == 0 or now - handoff.moved_at < STALL_S
            if not moving and handoff.sender.state is not SendState.STOPPING:
                detail = f"no write ended for {STALL_S:g} s"
                self._fail(room, FailureReason.TRANSFER_FAILED, detail)
            elif handoff.committed is not None and now - handoff.unanswered_since >= SILENCE_S:
                detail = f"decode engine {handoff.decode.ref} did not answer in {SILENCE_S:g} s"
                self._fail(room, FailureReason.PEER_LOST, detail)
                continue
            if now < handoff.resend_at:
                continue
            handoff.resend_at = now + RESEND_INTERVAL_S
            if handoff.committed is not None:
                self._out.append(Post(handoff.decode, handoff.committed))
            elif not handoff.sender.epoch and handoff.pending is None:
                self._out.append(Post(handoff.decode, PrefillStarted(room)))

    def views(self) -> dict[bytes, TransferView]:
        """How far each room's transfer is."""
        return {
            room: TransferView(
                peer=handoff.decode,
                state=handoff.sender.state.value,
                epoch=handoff.sender.epoch,
                num_writes=handoff.sender.num_writes,
                num_in_flight=handoff.sender.num_in_flight,
                num_sent_blocks=handoff.num_sent,
                moved_at=handoff.moved_at,
            )
            for room, handoff in self._rooms.items()
        }

    # --- from the engine -----------------------------------------------------------------------

    def open(self, event: OpenTransfer) -> None:
        """A room began to compute."""
        resend_at = self._now + RESEND_INTERVAL_S
        sender = Sender(event.pages)
        self._rooms[event.room] = Handoff(event.decode, event.pages, sender, resend_at=resend_at)

    def blocks_computed(self, event: BlocksComputed) -> None:
        """More blocks are final."""
        self._feed(event.room, lambda h: h.sender.blocks_computed(event.num_blocks))

    def prompt_computed(self, event: PromptComputed) -> None:
        """The prompt is done."""
        handoff = self._rooms.get(event.room)
        if handoff is not None:
            handoff.record = event.record
            self._feed(event.room, lambda h: h.sender.computed())

    def end(self, room: bytes) -> None:
        """The room ended."""
        self._feed(room, lambda h: h.sender.end())

    # --- from the wire -------------------------------------------------------------------------

    def manifest(self, sender: Peer, message: Manifest) -> None:
        """The decode engine named its pages. For a room that ended: nothing was written."""
        handoff = self._rooms.get(message.room)
        if handoff is None or handoff.sender.state in ENDED:
            was_cut = message.room in self._cut_short
            self._out.append(Post(sender, WriterStopped(message.room, message.epoch, was_cut)))
        elif sender.ref != handoff.decode.ref or handoff.sender.epoch:
            return  # another worker's, or a repeat
        else:
            handoff.pending = message
            self._use_manifest(handoff, message)

    def accepted(self, sender: Peer, message: HandoffAccepted) -> None:
        """The decode engine verified the record."""
        handoff = self._rooms.get(message.room)
        if handoff is None or handoff.committed is None or sender.ref != handoff.decode.ref:
            return
        if handoff.committed.epoch == message.epoch:
            handoff.sender.accepted()
            self._leave(message.room, handoff)

    def damaged(self, sender: Peer, message: BlocksDamaged) -> None:
        """The decode engine wants blocks once more; what it asks a second time is a repeat."""
        handoff = self._rooms.get(message.room)
        if handoff is None or handoff.committed is None or sender.ref != handoff.decode.ref:
            return
        if handoff.committed.epoch != message.epoch or handoff.num_resends >= MAX_RESENDS:
            return
        if not self._verify or not handoff.sender.was_written(message.blocks):
            detail = "the decode engine wants blocks that were not sent"
            self._fail(message.room, FailureReason.HANDOFF_REJECTED, detail)
            return
        handoff.num_resends += 1
        handoff.num_resent += len(message.blocks)
        handoff.committed = None
        self._feed(message.room, lambda h: h.sender.damaged(message.blocks))

    def written(self, room: bytes, write: int, error: str | None) -> None:
        """The pump finished a write, one way or the other."""
        handoff = self._rooms.get(room)
        if handoff is not None:
            handoff.write_ended(self._now)
            handoff.outcomes[write] = error
            self._write_over(room, handoff, write)

    def digested(self, digest: Digest, digests: bytes) -> None:
        """The digester is done with what a write reads."""
        room = digest.blocks.room
        handoff = self._rooms.get(room)
        if handoff is not None:
            handoff.digested(digest, digests)
            self._write_over(room, handoff, digest.write)

    # --- membership ----------------------------------------------------------------------------

    def decode_joined(self, info: WorkerInfo) -> None:
        """A decode engine's transfer metadata is known."""
        self._agents[info.peer.ref] = info.transfer.agent_name
        self._out.append(Connect(info.transfer))
        for handoff in list(self._rooms.values()):
            pending = handoff.pending
            if pending is not None:
                self._use_manifest(handoff, pending)

    def decode_left(self, ref: WorkerRef, dead: bool = True) -> None:
        """A decode engine is gone: its rooms cannot be handed off.

        One that only fell silent may wake: writes to it are not cut off, because half of one could then
        arrive in pages that it gave to another room. They end when they do, or when it is dead.
        """
        agent_name = self._agents.pop(ref, None) if dead else None
        if agent_name is not None:
            self._out.append(Disconnect(agent_name))
        for room, handoff in list(self._rooms.items()):
            if handoff.decode.ref == ref:
                self._fail(room, FailureReason.PEER_LOST, f"decode engine {ref} is gone")

    # --- inner ---------------------------------------------------------------------------------

    def _use_manifest(self, handoff: Handoff, message: Manifest) -> None:
        """Write as the manifest says, once the decode engine's transfer metadata is known."""
        if handoff.decode.ref not in self._agents:
            return
        if not handoff.sender.covers(message.first_block, len(message.pages)):
            self._fail(message.room, FailureReason.HANDOFF_REJECTED, "manifest of a wrong extent")
            return
        handoff.pending = None
        self._feed(
            message.room,
            lambda h: h.sender.manifest(message.epoch, message.first_block, message.pages),
        )

    def _write_over(self, room: bytes, handoff: Handoff, write: int) -> None:
        """A write is over once nothing reads its pages any more."""
        if write in handoff.outcomes and write not in handoff.digesting:
            error = handoff.outcomes.pop(write)
            self._feed(room, lambda h: h.sender.written(write, error))

    def _fail(self, room: bytes, reason: FailureReason, detail: str) -> None:
        self._out.append(TransferFailed(room, reason, detail))
        self.end(room)

    def _feed(self, room: bytes, event: Callable[[Handoff], Sequence[Instruction]]) -> None:
        handoff = self._rooms.get(room)
        if handoff is None:
            return
        num_before = handoff.sender.num_in_flight
        for instruction in event(handoff):
            self._carry_out(room, handoff, instruction)
        if handoff.sender.num_in_flight != num_before:
            handoff.moved_at = self._now
        if handoff.sender.state in ENDED:
            self._leave(room, handoff)

    def _carry_out(self, room: bytes, handoff: Handoff, instruction: Instruction) -> None:
        if isinstance(instruction, StartWrite):
            agent_name = self._agents.get(handoff.decode.ref, "")
            handoff.write_began(len(instruction.pairs), self._now)
            self._out.append(Submit(room, instruction.write, agent_name, instruction.pairs))
            self._digest(room, handoff, instruction)
        elif isinstance(instruction, Commit):
            repeat_at = self._now + RESEND_INTERVAL_S
            record = handoff.commit(instruction.epoch, self._block_bytes, repeat_at)
            self._out.append(Post(handoff.decode, record))
            if not record.block_digests:
                self._close(room, handoff)
        elif isinstance(instruction, WriteFailed):
            reason = FailureReason.TRANSFER_FAILED
            self._out.append(TransferFailed(room, reason, instruction.detail))
        else:
            pending_epoch = handoff.pending.epoch if handoff.pending is not None else 0
            epoch = instruction.epoch or pending_epoch
            if instruction.cut:
                self._cut_short.add(room, self._now)
            if epoch:
                stopped = WriterStopped(room, epoch, instruction.cut)
                self._out.append(Post(handoff.decode, stopped))

    def _digest(self, room: bytes, handoff: Handoff, write: StartWrite) -> None:
        if self._verify:
            pages = tuple(local for local, _ in write.pairs)
            digest = handoff.digest_of(room, write.write, pages)
            if digest is not None:
                self._out.append(digest)

    def _leave(self, room: bytes, handoff: Handoff) -> None:
        self._close(room, handoff)
        del self._rooms[room]

    def _close(self, room: bytes, handoff: Handoff) -> None:
        if not handoff.closed:
            handoff.closed = True
            self._out.append(TransferClosed(room, handoff.num_resent))

    def validate(self) -> None:
        """Every room's machine agrees with itself, and none that ended is still here."""
        for handoff in self._rooms.values():
            handoff.sender.validate()
            assert handoff.sender.state not in ENDED

"""Pages that a prefill engine may write: from the manifest to the commit, or to the quarantine's end.

It knows which writer a room waits for and when its pages are free; the core knows why a room ended.
"""

from bootstrap.identity import Peer
from bootstrap.messages import HandoffRecord, Manifest, WriterStopped
from decode.instructions import GiveUp, InboundClosed, InboundOpened, TornDown
from decode.quarantine import Quarantine
from decode.request import DecodeRequest
from engine.core import Post
from kv_transfer.digests import Blocks
from kv_transfer.ledger import PageLedger


class Inbound:
    """Between a room's InboundOpened and its InboundClosed, and at no other time, a peer may write it."""

    def __init__(self, ledger: PageLedger) -> None:
        self.quarantine = Quarantine()
        self._ledger = ledger
        self._gave_up = False

    @property
    def idle(self) -> bool:
        """Whether nothing is to be waited for; an engine that gave up waits for no writer."""
        return self._gave_up or not self.quarantine.rooms()

    def open(self, request: DecodeRequest) -> list[object]:
        """The admitted request's pages go into a manifest."""
        self._ledger.expose(request.room)
        manifest = self.manifest(request)
        blocks = Blocks(request.room, request.epoch, manifest.first_block, manifest.pages)
        return [InboundOpened(blocks), Post(request.dispatch.prefill, manifest)]

    def manifest(self, request: DecodeRequest) -> Manifest:
        """The pages that its prefill engine is to write."""
        first_block = request.num_named
        pages = self._ledger.pages_of(request.room)[first_block:]
        return Manifest(request.room, request.epoch, first_block, pages)

    def ended(self, request: DecodeRequest, exposed: bool, now: float) -> list[object]:
        """A receiving request ended; `exposed` when its pages stay back until the writer stopped."""
        if not exposed:
            return [InboundClosed(request.room)]
        self.quarantine.add(request.room, request.dispatch.prefill, now, request.num_resends)
        return []

    def record_came_late(
        self, sender: Peer, record: HandoffRecord, is_damaged: bool, now: float
    ) -> list[object]:
        """A record for a room that ended: it follows the last write, unless more were asked for.

        `is_damaged` when its blocks were compared and differ: what is missing may come yet.
        """
        answers = self.quarantine.num_resends_of(record.room) <= record.num_resends
        if not answers or not self.is_writer(sender, record.room):
            return []
        return self.writer_stopped(WriterStopped(record.room, record.epoch, is_damaged), now)

    def is_writer(self, sender: Peer, room: bytes) -> bool:
        """Whether the room is in quarantine because of `sender`."""
        writer = self.quarantine.writer_of(room)
        return writer is not None and writer.ref == sender.ref

    def writer_stopped(self, message: WriterStopped, now: float) -> list[object]:
        """The writer itself says so; of a write that was cut short the rest may still come.

        A transport that said of blocks that they had landed, and they had not, is not believed either.
        """
        if message.cut or self.quarantine.num_resends_of(message.room):
            self.quarantine.cut(message.room, now)
            return []
        return [] if self.quarantine.is_settling(message.room) else self._free(message)

    def torn_down(self, event: TornDown, now: float) -> None:
        """A dead writer's connection is gone."""
        self.quarantine.torn_down(event.ref, now)

    def tick(self, now: float) -> list[object]:
        """Quarantines whose time is over, and what is asked of writers that have not answered."""
        freed = [
            each for room in self.quarantine.due(now) for each in self._free(WriterStopped(room))
        ]
        return [*freed, *self.quarantine.requests(now), *self._hopeless(now)]

    def _hopeless(self, now: float) -> list[object]:
        """No transport lets a target cut off a live writer: what it may still write ends with us."""
        writer = self.quarantine.hopeless(now)
        if writer is None or self._gave_up:
            return []
        self._gave_up = True
        return [GiveUp(f"{writer} was asked to stop writing and gives no sign of life")]

    def _free(self, stopped: WriterStopped) -> list[object]:
        room = stopped.room
        self._ledger.writer_stopped(room, stopped.epoch)
        if room not in self.quarantine.rooms() or self._ledger.pages_of(room):
            return []
        self.quarantine.end(room)
        return [InboundClosed(room)]

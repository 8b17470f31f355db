"""How each prompt of a prefill engine is, in words: what it waits for and what would let it go on.

Pure; it looks at the core's rooms and changes none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bootstrap.inspection import RoomProgress, RoomReport, Wait
from engine.inspection import TransferView, counted
from engine.limits import EngineLimits
from kv_transfer.ledger import PageLedger
from kv_transfer.sender import SendState
from prefill.request import PrefillRequest, PrefillState

_S = PrefillState

_Waits = tuple[Wait, str]


@dataclass(frozen=True, slots=True)
class PrefillRooms:
    """The core's own collections: what they hold is what is reported."""

    rooms: Mapping[bytes, PrefillRequest]
    queue: Collection[PrefillRequest]  # in order
    computing: Mapping[bytes, PrefillRequest]
    ledger: PageLedger
    limits: EngineLimits

    def states(self) -> dict[bytes, str]:
        """Every room of the core."""
        return {room: request.state.value for room, request in self.rooms.items()}

    def reports(
        self, rooms: Sequence[bytes], transfers: Mapping[bytes, TransferView], now: float
    ) -> list[RoomReport]:
        """One per room; of a room that the core has forgotten only the transfer is left."""
        turns = self._turns()
        reports = []
        for room in rooms:
            request, view = self.rooms.get(room), transfers.get(room)
            if request is not None:
                reports.append(self._report(request, view, turns, now))
            elif view is not None:
                reports.append(_remains(room, view, now))
        return reports

    def _turns(self) -> dict[bytes, tuple[int, int]]:
        """How many prompts and tokens stand before each room of the queue."""
        turns = {}
        num_tokens = 0
        for index, request in enumerate(self.queue):
            turns[request.room] = index, num_tokens
            num_tokens += request.num_tokens
        return turns

    def _report(
        self,
        request: PrefillRequest,
        view: TransferView | None,
        turns: Mapping[bytes, tuple[int, int]],
        now: float,
    ) -> RoomReport:
        dispatch = request.dispatch
        wait, detail = self._wait(request, view, turns)
        return RoomReport(
            room=request.room,
            state=request.state.value,
            waits_for=wait,
            detail=detail,
            request_id=dispatch.request_id,
            attempt=dispatch.attempt,
            balancer=dispatch.reply_to.ref,
            peer=None if dispatch.decode is None else dispatch.decode.ref,
            epoch=0 if view is None else view.epoch,
            age_s=now - request.arrived_at,
            progress=RoomProgress(
                num_prompt_tokens=request.num_tokens,
                num_computed_tokens=request.num_computed,
                num_sent_blocks=0 if view is None else view.num_sent_blocks,
                num_output_tokens=int(request.state is _S.SENDING),
            ),
        )

    def _wait(
        self,
        request: PrefillRequest,
        view: TransferView | None,
        turns: Mapping[bytes, tuple[int, int]],
    ) -> _Waits:
        if request.state is _S.QUEUED:
            return self._queue_wait(request, *turns[request.room])
        if request.state is _S.COMPUTING:
            computed = f"{request.num_computed} of {request.num_tokens} tokens are computed"
            if request.waits_for_grammar and request.num_computed == request.num_tokens - 1:
                return Wait.GRAMMAR, "its grammar compiles; all but the last token is computed"
            return Wait.NOTHING, computed
        if view is None:
            return Wait.NOTHING, "its transfer closes"
        if request.state is _S.CLOSING:
            return _writes(view, "ended; its pages wait for")
        if view.state in (SendState.WAITING.value, SendState.READY.value):
            return Wait.MANIFEST, f"waits for the manifest of {view.peer.ref}"
        if view.state == SendState.COMMITTED.value:
            return Wait.ACCEPTANCE, f"handed off; waits for {view.peer.ref} to accept the record"
        return _writes(view, "waits for")

    def _queue_wait(self, request: PrefillRequest, num_before: int, num_tokens: int) -> _Waits:
        if num_before:
            return Wait.TURN, f"queued behind {counted(num_before, 'prompt')}, {num_tokens} tokens"
        num_computing = len(self.computing)
        if num_computing >= self.limits.max_num_seqs:
            return (
                Wait.SEQUENCES,
                f"next, but {counted(num_computing, 'prompt')} may compute at once",
            )
        num_pages = self.limits.blocks_for(request.num_tokens)
        num_free = self.ledger.num_available
        if num_pages > num_free:
            return Wait.PAGES, f"next; waits for {counted(num_pages, 'page')}, {num_free} free"
        return Wait.NOTHING, "next; begins with the next step"


def _writes(view: TransferView, words: str) -> _Waits:
    if not view.num_in_flight:
        return Wait.NOTHING, "its transfer closes"
    return (
        Wait.WRITES,
        f"{words} {view.num_in_flight} of {view.num_writes} writes to {view.peer.ref}",
    )


def _remains(room: bytes, view: TransferView, now: float) -> RoomReport:
    """A room that the core has forgotten: its record is out and not acknowledged."""
    return RoomReport(
        room=room,
        state=view.state,
        waits_for=Wait.ACCEPTANCE,
        detail=f"handed off; waits for {view.peer.ref} to accept the record",
        peer=view.peer.ref,
        epoch=view.epoch,
        in_state_s=now - view.moved_at if view.moved_at else 0.0,
        progress=RoomProgress(num_sent_blocks=view.num_sent_blocks),
    )

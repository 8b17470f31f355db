"""How each room of a decode engine is, in words: what it waits for and what would let it go on.

Pure; it looks at the core's rooms and changes none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bootstrap.identity import WorkerRef
from bootstrap.inspection import RoomProgress, RoomReport, Wait
from decode.quarantine import Quarantine
from decode.request import DecodeRequest, DecodeState
from decode.scheduler import DecodeScheduler
from engine.inspection import TransferView, counted
from engine.limits import EngineLimits

_S = DecodeState
QUARANTINED = "quarantined"

_Waits = tuple[Wait, str]


@dataclass(frozen=True, slots=True)
class DecodeRooms:
    """The core's own parts: what they hold is what is reported."""

    rooms: Mapping[bytes, DecodeRequest]
    scheduler: DecodeScheduler
    quarantine: Quarantine
    limits: EngineLimits
    is_known: Callable[[WorkerRef], bool]  # whether a prefill engine has registered

    def states(self) -> dict[bytes, str]:
        """Every room of the core, those in quarantine included."""
        quarantined = dict.fromkeys(self.quarantine.rooms(), QUARANTINED)
        return {**quarantined, **{room: r.state.value for room, r in self.rooms.items()}}

    def reports(
        self, rooms: Sequence[bytes], transfers: Mapping[bytes, TransferView], now: float
    ) -> list[RoomReport]:
        """One per room; `transfers` are a prefill engine's."""
        turns = {room: index for index, room in enumerate(self.scheduler.admitting)}
        reports = []
        for room in rooms:
            request = self.rooms.get(room)
            if request is None:
                reports.append(self._quarantined(room, now))
            else:
                reports.append(self._report(request, turns.get(room, 0), now))
        return reports

    def _report(self, request: DecodeRequest, num_before: int, now: float) -> RoomReport:
        dispatch = request.dispatch
        wait, detail = self._wait(request, num_before)
        holds_prompt = request.state in (_S.RUNNING, _S.RETRACTED)
        return RoomReport(
            room=request.room,
            state=request.state.value,
            waits_for=wait,
            detail=detail,
            request_id=dispatch.request_id,
            attempt=dispatch.attempt,
            balancer=dispatch.reply_to.ref,
            peer=dispatch.prefill.ref,
            epoch=request.epoch,
            age_s=now - request.arrived_at,
            progress=RoomProgress(
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=request.num_prompt_tokens if holds_prompt else 0,
                num_output_tokens=len(request.token_ids) - request.num_prompt_tokens,
            ),
        )

    def _wait(self, request: DecodeRequest, num_before: int) -> _Waits:
        state, prefill = request.state, request.dispatch.prefill.ref
        if state is _S.EXPECTED:
            return self._expected(request, prefill)
        if state is _S.ADMITTING:
            return self._admission(request, num_before)
        if state is _S.RECEIVING:
            return Wait.RECORD, f"waits for the handoff record of {prefill}"
        if state is _S.RETRACTED:
            num_pages = self.limits.blocks_for(len(request.token_ids))
            return Wait.PAGES, f"retracted; waits for {self._pages(num_pages)}"
        return Wait.NOTHING, "decodes in every step"

    def _expected(self, request: DecodeRequest, prefill: WorkerRef) -> _Waits:
        if request.waits_for_grammar:
            return Wait.GRAMMAR, "its grammar compiles"
        if not self.is_known(prefill):
            return Wait.PEER, f"waits for {prefill} to register here"
        return Wait.PREFILL, f"waits for {prefill} to begin the prompt"

    def _admission(self, request: DecodeRequest, num_before: int) -> _Waits:
        """Why a started prompt has no pages, in the order in which the scheduler looks."""
        scheduler = self.scheduler
        if scheduler.retracted:
            behind = counted(len(scheduler.retracted), "retracted request")
            return Wait.TURN, f"waits for pages behind {behind}"
        if num_before:
            return Wait.TURN, f"waits for pages behind {counted(num_before, 'prompt')}"
        num_active = len(scheduler.running) + len(scheduler.receiving)
        if num_active >= self.limits.max_num_seqs:
            return Wait.SEQUENCES, f"next, but {counted(num_active, 'request')} may be here at once"
        num_pages = self.limits.blocks_for(request.num_prompt_tokens)
        reserve = f", {num_active} of them for growth" if num_active else ""
        return Wait.PAGES, f"next; waits for {self._pages(num_pages + num_active)}{reserve}"

    def _pages(self, num_wanted: int) -> str:
        return f"{counted(num_wanted, 'page')}, {self.scheduler.ledger.num_available} free"

    def _quarantined(self, room: bytes, now: float) -> RoomReport:
        view = self.quarantine.view(room)
        assert view is not None
        writer = view.writer.ref
        if view.free_at is None:
            asked = "once" if view.num_asked == 1 else f"{view.num_asked} times"
            wait = Wait.WRITER
            detail = f"quarantined: waits for {writer} to say that it stopped, asked {asked}"
        else:
            wait = Wait.SETTLING
            detail = f"quarantined: settling, {max(0.0, view.free_at - now):.1f} s left"
        return RoomReport(
            room=room,
            state=QUARANTINED,
            waits_for=wait,
            detail=detail,
            peer=writer,
            epoch=self.scheduler.ledger.epoch_of(room),
            age_s=now - view.since,
            in_state_s=now - view.since,
        )

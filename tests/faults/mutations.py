"""pdserve with one of its safeguards taken out: what the matrix and the exploration must catch.

Each mutation names the safeguard, how it is taken out, and where the loss of it shows: cells of the
matrix, or a world of the exploration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import decode.quarantine
from bootstrap.directory import Left
from bootstrap.membership import LeaveReason
from bootstrap.messages import RoomTokens
from bootstrap.recent_rooms import RecentRooms
from cluster.balancer.attempt import TokenMerge
from cluster.balancer.request import Request
from decode.core import DecodeCore
from decode.handoff import Accepted, HandoffChecks
from kv_transfer.ledger import PageLedger, PageState
from kv_transfer.sender import Commit, Sender, SendState, Stopped
from prefill.core import PrefillCore
from prefill.handoffs import Handoffs
from tests.faults.exploration import CANCELS, LOSSES, World
from tests.faults.processes import Worker

Patch = Callable[[Any, str, Any], None]  # pytest's `monkeypatch.setattr`

_CANCELLED = World("cancelled", (9,), 3, CANCELS)
_LOSSY = World("lossy", (9,), 3, LOSSES)


@dataclass(frozen=True, slots=True)
class Mutation:
    """`take_out` removes the safeguard; one of `cells`, or the world, must show it."""

    name: str
    take_out: Callable[[Patch], None]
    cells: Sequence[str] = ()
    world: World | None = None


def _no_quarantine(patch: Patch) -> None:
    release = PageLedger.release

    def release_at_once(ledger: PageLedger, room: bytes) -> bool:
        holding = ledger._rooms.get(room)
        if holding is not None and holding.incoming_state is PageState.WRITING:
            holding.writer_stopped = True
        return release(ledger, room)

    patch(PageLedger, "release", release_at_once)


def _no_tombstones(patch: Patch) -> None:
    patch(RecentRooms, "__contains__", lambda memory, room: False)


def _no_incarnations(patch: Patch) -> None:
    receive = Worker.receive

    def receive_all(worker: Worker, packet: Any) -> None:
        if packet.recipient is not None and packet.recipient.worker_id == worker.me.ref.worker_id:
            packet.recipient = worker.me.ref
        receive(worker, packet)

    patch(Worker, "receive", receive_all)


def _record_before_the_last_write(patch: Patch) -> None:
    settle = Sender._settle

    def settle_at_once(sender: Sender, event: Any) -> list[Any]:
        in_flight, sender._in_flight = sender._in_flight, set()
        out = settle(sender, event)
        sender._in_flight = in_flight
        return out

    def written(sender: Sender, write: int, error: str | None) -> list[Any]:
        sender._in_flight.discard(write)
        return [] if sender.state is SendState.COMMITTED else _written(sender, write, error)

    _written = Sender.written
    patch(Sender, "_settle", settle_at_once)
    patch(Sender, "written", written)
    patch(Sender, "validate", lambda sender: None)


def _stopped_before_the_last_write(patch: Patch) -> None:
    stop = Sender._stop

    def stop_at_once(sender: Sender, event: Any) -> list[Any]:
        said = [] if sender.state is SendState.STOPPING else [Stopped(sender.epoch)]
        return [*said, *(i for i in stop(sender, event) if not isinstance(i, Stopped | Commit))]

    patch(Sender, "_stop", stop_at_once)


def _repeats_are_delivered(patch: Patch) -> None:
    push = TokenMerge.push

    def push_all(merge: TokenMerge, tokens: RoomTokens) -> RoomTokens:
        merge.next = min(merge.next, tokens.position)
        return push(merge, tokens)

    patch(TokenMerge, "push", push_all)


def _no_settling_time(patch: Patch) -> None:
    patch(decode.quarantine, "SETTLE_S", 0.0)


def _silent_is_dead(patch: Patch) -> None:
    patch(LeaveReason, "dead", property(lambda reason: True))
    patch(Left, "dead", property(lambda left: True))


def _aborts_are_not_heard(patch: Patch) -> None:
    patch(PrefillCore, "_aborted", lambda core, sender, message, now: None)
    patch(DecodeCore, "_aborted", lambda core, sender, message, now: None)


def _nothing_is_said_again(patch: Patch) -> None:
    patch(Handoffs, "tick", lambda handoffs, now: None)


def _reports_are_not_read(patch: Patch) -> None:
    patch(Request, "progress", lambda request, ref, *, named, now: [])


def _bytes_are_not_verified(patch: Patch) -> None:
    patch(HandoffChecks, "judge", lambda checks, request, record, bad_blocks: Accepted())


def _any_epoch_frees(patch: Patch) -> None:
    aborted = DecodeCore._aborted

    def abort_and_free(core: DecodeCore, sender: Any, message: Any, now: float) -> None:
        aborted(core, sender, message, now)
        core.scheduler.ledger.writer_stopped(message.room, 0)

    patch(DecodeCore, "_aborted", abort_and_free)


MUTATIONS = (
    Mutation("no quarantine", _no_quarantine, world=_CANCELLED),
    Mutation("no quarantine, in the matrix", _no_quarantine, ("cancel-d/delay", "cancel-d/stop-p")),
    Mutation("no tombstones", _no_tombstones, ("dispatch-p/repeat", "dispatch-d/repeat")),
    Mutation("no incarnations", _no_incarnations, ("*/restart-p", "*/restart-d")),
    Mutation(
        "the record goes before the last write", _record_before_the_last_write, ("write-2/delay",)
    ),
    Mutation(
        "stopped is said before the last write", _stopped_before_the_last_write, world=_CANCELLED
    ),
    Mutation("repeats are delivered", _repeats_are_delivered, ("token-batch/repeat",)),
    Mutation("no settling time", _no_settling_time, ("write-1/kill-p", "write-2/kill-p")),
    Mutation("silent is taken for dead", _silent_is_dead, ("write-1/stop-p", "write-2/stop-p")),
    Mutation("aborts are not heard", _aborts_are_not_heard, ("manifest/stop-d", "write-1/stop-p")),
    Mutation("nothing is said again", _nothing_is_said_again, world=_LOSSY),
    Mutation("reports are not read", _reports_are_not_read, ("dispatch-d/drop", "finish/drop")),
    Mutation(
        "bytes are not verified", _bytes_are_not_verified, ("write-1/drop", "write-1/corrupt")
    ),
    Mutation("an abort frees pages", _any_epoch_frees, world=_CANCELLED),
)

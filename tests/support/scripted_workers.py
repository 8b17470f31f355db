"""Prefill and decode workers without a model: real mailboxes and registrations, answers by script."""

import threading
from collections.abc import Sequence

from bootstrap.client import BootstrapClient, Registration
from bootstrap.contract import KVContract
from bootstrap.identity import Peer, Role, WorkerRef, new_incarnation
from bootstrap.mailbox import Mailbox
from bootstrap.membership import WorkerLimits, WorkerLoad
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    FailureReason,
    LegFailed,
    Message,
    Ping,
    Pong,
    PrefillDispatch,
    RoomTokens,
    TokenBatch,
)
from tests.support.members import CONTRACT, LIMITS, worker_info


class ScriptedWorker:
    """Answers each dispatch with `token_ids` by position: prefill with one, decode with the rest.

    `limit` is the first position that is held back, until `release`. `refuse` answers dispatches with
    a failure; `mute` with nothing. Everything received is kept.
    """

    def __init__(
        self,
        role: Role,
        bootstrap: str,
        token_ids: Sequence[int],
        *,
        worker_id: str | None = None,
        contract: KVContract = CONTRACT,
        limits: WorkerLimits = LIMITS,
    ) -> None:
        self.role = role
        self.token_ids = tuple(token_ids)
        self.limit = 1 << 20
        self.refuse: FailureReason | None = None
        self.mute = False
        self.dispatches: list[PrefillDispatch | DecodeDispatch] = []
        self.aborts: dict[bytes, FailureReason] = {}
        self._held: list[tuple[DecodeDispatch, int]] = []
        self._lock = threading.RLock()
        me = WorkerRef(worker_id or role.value, new_incarnation())
        self.mailbox = Mailbox(me, "127.0.0.1", self._on_message, None)
        info = worker_info(
            me.worker_id,
            role,
            incarnation=me.incarnation,
            endpoint=self.mailbox.peer.endpoint,
            contract=contract,
            limits=limits,
        )
        registration = Registration(info, lambda: WorkerLoad(pages={"free": 64}))
        self.client = BootstrapClient(
            bootstrap, self.mailbox.peer, None, lambda event: None, registration
        )
        self.mailbox.start()
        self.client.start()

    @property
    def ref(self) -> WorkerRef:
        """This life."""
        return self.mailbox.peer.ref

    def of(self, request_id: str) -> list[PrefillDispatch | DecodeDispatch]:
        """Dispatches of one client request, probes left out."""
        with self._lock:
            return [d for d in self.dispatches if d.request_id.partition("/")[0] == request_id]

    def release(self) -> None:
        """Hold nothing back any more."""
        with self._lock:
            self.limit = 1 << 20
            held, self._held = self._held, []
            for dispatch, position in held:
                self._decode(dispatch, position)

    def leave(self) -> None:
        """Say goodbye and vanish: no room is answered any more."""
        self.mute = True
        self.client.stop()
        self.mailbox.stop()

    def _on_message(self, sender: Peer, message: Message) -> None:
        if isinstance(message, Ping) and not self.mute:
            self.mailbox.post(sender, Pong())
        with self._lock:
            if isinstance(message, AbortRoom):
                self.aborts.setdefault(message.room, message.reason)
            elif isinstance(message, PrefillDispatch | DecodeDispatch):
                self.dispatches.append(message)
                self._answer(message)

    def _answer(self, message: PrefillDispatch | DecodeDispatch) -> None:
        if self.mute:
            return
        if self.refuse is not None:
            self.mailbox.post(message.reply_to, LegFailed(message.room, self.refuse, "by script"))
        elif isinstance(message, PrefillDispatch):
            self._send(message, message.output_offset)
        else:
            self._decode(message, message.output_offset + 1)

    def _decode(self, dispatch: DecodeDispatch, position: int) -> None:
        while position < min(dispatch.sampling.max_tokens, self.limit):
            if dispatch.room in self.aborts or self._send(dispatch, position):
                return
            position += 1
        if position < dispatch.sampling.max_tokens:
            self._held.append((dispatch, position))

    def _send(self, dispatch: PrefillDispatch | DecodeDispatch, position: int) -> bool:
        token_id = self.token_ids[position % len(self.token_ids)]
        finish = dispatch.sampling.finish_at(position, token_id)
        tokens = RoomTokens(dispatch.room, position, (token_id,), finish)
        self.mailbox.post(dispatch.reply_to, TokenBatch((tokens,)))
        return finish is not None

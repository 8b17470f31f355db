"""An administrator's commands to one engine, as its core carries them out between steps.

Pure, and the same for both roles. New weights come in two steps, so that all engines take them or
none: they are loaded beside the old ones, and from then on the engine takes no new room until it is
told to use or to forget them. Nothing of the old weights' KV outlives the change.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bootstrap.commands import CommandAnswered, CommitWeights, DiscardWeights, FlushCache
from bootstrap.identity import Peer
from bootstrap.messages import Message
from engine.core import Post, Received
from kv_transfer.ledger import PageLedger

HOLD_S = 60.0  # for whoever prepared weights to decide; after that it is taken for dead


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """Event: `command` of `sender` had weights loaded, unless `refusal` says why not."""

    sender: Peer
    command: bytes
    model_digest: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class UseWeights:
    """Instruction: from the next step on compute with what `command` loaded."""

    command: bytes


@dataclass(frozen=True, slots=True)
class ForgetWeights:
    """Instruction: what `command` loaded is not wanted."""

    command: bytes


class EngineCommands:
    """Invariant: `holding` exactly while weights are loaded and nothing is decided about them.

    `num_rooms` and `end_rooms(detail, now)` are the core's; what it puts out for ended rooms precedes
    what is returned here.
    """

    def __init__(
        self,
        ledger: PageLedger,
        num_rooms: Callable[[], int],
        end_rooms: Callable[[str, float], None],
    ) -> None:
        self._ledger = ledger
        self._num_rooms = num_rooms
        self._end_rooms = end_rooms
        self._loaded: bytes | None = None
        self._hold_until = 0.0

    @property
    def holding(self) -> bool:
        """Whether no new room may begin: it would be computed by weights that are about to go."""
        return self._loaded is not None

    def handle(self, event: object, now: float) -> list[object]:
        """Instructions that a command or its loaded weights set off; none for other events."""
        if isinstance(event, WeightsLoaded):
            return self._weights_loaded(event, now)
        if not isinstance(event, Received):
            return []
        answer = self._answer(event.message, now)
        return [] if answer is None else [*answer[0], Post(event.sender, answer[1])]

    def tick(self, now: float) -> list[object]:
        """Give up weights that nobody decided about."""
        return self._forget() if self.holding and now >= self._hold_until else []

    def _answer(self, message: Message, now: float) -> tuple[list[object], CommandAnswered] | None:
        if isinstance(message, FlushCache):
            return [], self._flush(message)
        if isinstance(message, CommitWeights):
            if message.prepared != self._loaded:
                refusal = "these weights are not loaded here"
                return [], CommandAnswered(message.command, refusal=refusal)
            self._end_rooms("the model's weights change", now)
            self._ledger.flush_cache()
            self._loaded = None
            return [UseWeights(message.prepared)], CommandAnswered(message.command)
        if isinstance(message, DiscardWeights):
            forgotten = self._forget() if message.prepared == self._loaded else []
            return forgotten, CommandAnswered(message.command)
        return None

    def _weights_loaded(self, event: WeightsLoaded, now: float) -> list[object]:
        answer = CommandAnswered(
            event.command, refusal=event.refusal, model_digest=event.model_digest
        )
        if event.refusal:
            return [Post(event.sender, answer)]
        forgotten = self._forget()
        self._loaded, self._hold_until = event.command, now + HOLD_S
        return [*forgotten, Post(event.sender, answer)]

    def _forget(self) -> list[object]:
        loaded, self._loaded = self._loaded, None
        return [] if loaded is None else [ForgetWeights(loaded)]

    def _flush(self, message: FlushCache) -> CommandAnswered:
        """Refused while a room is here or holds pages, also in quarantine."""
        num_holding = max(self._num_rooms(), len(self._ledger.rooms()))
        if num_holding:
            return CommandAnswered(message.command, refusal=f"{num_holding} rooms are live")
        return CommandAnswered(message.command, num_blocks=self._ledger.flush_cache())

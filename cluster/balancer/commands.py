"""Commands to all engines at once, and their answers. Belongs to the event loop."""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bootstrap.commands import CommandAnswered
from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import Message

_NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What one engine made of a command; `refusal` is empty when it was carried out."""

    worker: str
    refusal: str
    num_blocks: int = 0
    model_digest: str = ""


class Commands:
    """Every engine that was asked has one answer when `ask_all` returns, be it that it gave none."""

    def __init__(self, post: Callable[[Peer, Message], None]) -> None:
        self._post = post
        self._waiting: dict[tuple[bytes, WorkerRef], asyncio.Future[CommandAnswered]] = {}

    async def ask_all(
        self, peers: Iterable[Peer], make: Callable[[bytes], Message], timeout_s: float
    ) -> list[EngineAnswer]:
        """Send each of `peers` what `make` makes of a new command's id; answers in their order."""
        command = secrets.token_bytes(16)
        asked = {(command, peer.ref): peer for peer in peers}
        loop = asyncio.get_running_loop()
        futures = {key: loop.create_future() for key in asked}
        self._waiting.update(futures)
        try:
            for peer in asked.values():
                self._post(peer, make(command))
            if futures:
                await asyncio.wait(futures.values(), timeout=timeout_s)
        finally:
            for key in asked:
                self._waiting.pop(key, None)
        return [_answer_of(ref, future) for (_, ref), future in futures.items()]

    def answered(self, sender: Peer, message: CommandAnswered) -> None:
        """An engine's answer; one that nobody waits for is dropped."""
        future = self._waiting.pop((message.command, sender.ref), None)
        if future is not None and not future.done():
            future.set_result(message)

    def left(self, ref: WorkerRef) -> None:
        """An engine is gone: it will answer nothing."""
        for key, future in list(self._waiting.items()):
            if key[1] == ref and not future.done():
                future.set_result(CommandAnswered(key[0], refusal="it left the cluster"))


def _answer_of(ref: WorkerRef, future: "asyncio.Future[CommandAnswered]") -> EngineAnswer:
    if not future.done():
        return EngineAnswer(ref.worker_id, _NO_ANSWER)
    message = future.result()
    return EngineAnswer(ref.worker_id, message.refusal, message.num_blocks, message.model_digest)

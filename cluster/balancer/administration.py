"""What an administrator may do to a running balancer and to all engines behind it.

Knows no HTTP. Acts for this balancer: others in front of the same engines have their own clients.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from bootstrap.commands import FlushCache, LogLevel, SetLogLevel
from bootstrap.messages import Message
from cluster.balancer.commands import EngineAnswer
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.weight_update import WeightUpdate

COMMAND_TIMEOUT_S = 10.0
POLL_S = 0.05

log = logging.getLogger(__name__)


class PauseMode(Enum):
    """What becomes of the requests that run when a pause begins."""

    WAIT = "wait"  # they finish
    ABORT = "abort"  # they end with an error


class Administration:
    """One at a time: an operation waits for the one before it, except aborts, which never wait."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._lock = asyncio.Lock()

    async def pause(self, mode: PauseMode) -> None:
        """Refuse new requests from now on; returns when none runs any more.

        Whoever stops waiting leaves the server paused.
        """
        dispatcher = self._dispatcher
        dispatcher.paused = True
        log.info("paused (%s)", mode.value)
        if mode is PauseMode.ABORT:
            dispatcher.abandon("an administrator paused the server")
        while dispatcher.core.num_requests:
            await asyncio.sleep(POLL_S)

    def resume(self) -> None:
        """Take requests again. Idempotent."""
        self._dispatcher.paused = False
        self._dispatcher.members_changed.set()  # has readiness looked at again
        log.info("resumed")

    def abort(self, answer_id: str) -> int:
        """End a call by its answer's id; how many requests that ended.

        An unknown one is ended should it still come.
        """
        return self._dispatcher.abort(answer_id, "aborted by an administrator")

    async def flush_cache(self) -> list[EngineAnswer]:
        """Have every engine forget its cached blocks; those with live pages refuse."""
        return await self._ask_all(FlushCache)

    async def set_log_level(self, level: LogLevel) -> list[EngineAnswer]:
        """Of this process and of every engine."""
        logging.getLogger().setLevel(level.upper())
        return await self._ask_all(lambda command: SetLogLevel(command, level))

    async def update_weights(self, model_dir: str, mode: PauseMode) -> str:
        """Have every engine compute with the weights in `model_dir`; the new model's digest.

        Pauses meanwhile. Raises WeightUpdateFailed; unless that says so, nothing has changed.
        """
        async with self._lock:
            was_paused = self._dispatcher.paused
            try:
                await self.pause(mode)
                return await WeightUpdate(self._dispatcher).run(model_dir)
            finally:
                if not was_paused:
                    self.resume()

    async def _ask_all(self, make: Callable[[bytes], Message]) -> list[EngineAnswer]:
        async with self._lock:
            dispatcher = self._dispatcher
            return await dispatcher.commands.ask_all(dispatcher.peers(), make, COMMAND_TIMEOUT_S)

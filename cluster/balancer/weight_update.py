"""New weights for all engines or for none: all load them first, and only then all use them."""

import asyncio
import logging
import time
from collections.abc import Sequence

from bootstrap.commands import CommitWeights, DiscardWeights, PrepareWeights
from bootstrap.errors import RemoteFault
from bootstrap.identity import Peer
from bootstrap.messages import Message
from cluster.balancer.commands import EngineAnswer
from cluster.balancer.dispatcher import Dispatcher

LOAD_TIMEOUT_S = 900.0
COMMIT_TIMEOUT_S = 30.0
REGISTER_TIMEOUT_S = 10.0
POLL_S = 0.05

log = logging.getLogger(__name__)


class WeightUpdateFailed(RemoteFault):
    """Names the engines that refused. When `partial`, others have changed and pair with nobody else."""

    def __init__(self, message: str, *, partial: bool = False) -> None:
        super().__init__(message)
        self.partial = partial


class WeightUpdate:
    """One update. The dispatcher is paused, and has no request that runs, from before it to after it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._prepared = b""

    async def run(self, model_dir: str) -> str:
        """Load, use, and wait until the engines pair again; the new digest.

        Raises WeightUpdateFailed.
        """
        peers = self._dispatcher.peers()
        if not peers:
            raise WeightUpdateFailed("no engine is there")
        try:
            digest = await self._prepare(peers, model_dir)
        except WeightUpdateFailed:
            await self._discard()
            raise
        await self._commit(peers)
        await self._registered(peers, digest)
        log.info("%d engines compute with the weights in %s", len(peers), model_dir)
        return digest

    async def _prepare(self, peers: Sequence[Peer], model_dir: str) -> str:
        def make(command: bytes) -> Message:
            self._prepared = command
            return PrepareWeights(command, model_dir)

        answers = await self._dispatcher.commands.ask_all(peers, make, LOAD_TIMEOUT_S)
        _check(answers)
        digests = {answer.model_digest for answer in answers}
        if len(digests) > 1:
            found = "; ".join(f"{answer.worker}: {answer.model_digest}" for answer in answers)
            raise WeightUpdateFailed(f"the engines found different weights: {found}")
        return digests.pop()

    async def _discard(self) -> None:
        """By all who are still here; one that does not hear of it gives up by itself."""
        prepared = self._prepared
        await self._dispatcher.commands.ask_all(
            self._dispatcher.peers(),
            lambda command: DiscardWeights(command, prepared),
            COMMIT_TIMEOUT_S,
        )

    async def _commit(self, peers: Sequence[Peer]) -> None:
        prepared = self._prepared
        answers = await self._dispatcher.commands.ask_all(
            peers, lambda command: CommitWeights(command, prepared), COMMIT_TIMEOUT_S
        )
        _check(answers, partial=any(not answer.refusal for answer in answers))

    async def _registered(self, peers: Sequence[Peer], digest: str) -> None:
        """Until no engine that is still here is known by its old weights."""
        refs = {peer.ref for peer in peers}
        deadline_at = time.monotonic() + REGISTER_TIMEOUT_S
        while time.monotonic() < deadline_at:
            present = [m.info for m in self._dispatcher.core.members if m.info.peer.ref in refs]
            if all(info.contract.model_digest == digest for info in present):
                return
            await asyncio.sleep(POLL_S)
        raise WeightUpdateFailed(
            "the engines did not register with their new weights", partial=True
        )


def _check(answers: Sequence[EngineAnswer], *, partial: bool = False) -> None:
    refused = [f"{answer.worker}: {answer.refusal}" for answer in answers if answer.refusal]
    if refused:
        raise WeightUpdateFailed("; ".join(refused), partial=partial)

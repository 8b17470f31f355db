"""What one client call gets: the texts of all its choices as they grow, and one ending."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from bootstrap.errors import RemoteFault
from bootstrap.sampling import FinishReason
from cluster.balancer.detokenizer import Decode
from cluster.balancer.instructions import Deliver, Fail, Failure
from cluster.balancer.request import RequestSpec
from cluster.balancer.text import ChoiceText


class GenerationFailed(RemoteFault):
    """There is no (further) answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind.value}: {failure.detail}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """More of one choice; `finish` comes once for each choice, with its last text."""

    index: int
    text: str
    finish: FinishReason | None


class Generation:
    """Choices are numbered like `specs`. One failed request fails the whole and cancels the rest.

    Belongs to the event loop. `put` feeds it; `end(index, hit)` is called for each request that is
    to stop, because of a stop string or not.
    """

    def __init__(
        self,
        specs: Sequence[RequestSpec],
        stops: tuple[str, ...],
        decode: Decode,
        end: Callable[[int, bool], None],
    ) -> None:
        self._news: asyncio.Queue[tuple[int, Deliver | Fail]] = asyncio.Queue()
        self._texts = {i: ChoiceText(decode, spec.sampling, stops) for i, spec in enumerate(specs)}
        self._open = set(self._texts)
        self._end = end

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all choices so far, as far as they count for the client."""
        return sum(text.num_tokens for text in self._texts.values())

    def put(self, index: int, what: Deliver | Fail) -> None:
        """Something happened to the request of choice `index`."""
        self._news.put_nowait((index, what))

    def cancel(self) -> None:
        """Nobody listens any more: end what still runs. Idempotent."""
        for index in sorted(self._open):
            self._end(index, False)
        self._open.clear()

    async def deltas(self) -> AsyncIterator[ChoiceDelta]:
        """All choices' text until each has finished; raises GenerationFailed."""
        try:
            while self._open:
                index, what = await self._news.get()
                if index not in self._open:
                    continue
                if isinstance(what, Fail):
                    self._open.discard(index)
                    raise GenerationFailed(what.failure)
                yield self._delta(index, what)
        finally:
            self.cancel()

    def _delta(self, index: int, what: Deliver) -> ChoiceDelta:
        delta = self._texts[index].push(what.token_ids, what.finish)
        if delta.finish is not None:
            self._open.discard(index)
            if what.finish is None:
                self._end(index, True)
        return ChoiceDelta(index, delta.text, delta.finish)

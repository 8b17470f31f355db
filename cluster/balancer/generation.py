"""What one client call gets: the texts of all its choices as they grow, and one ending."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from bootstrap.errors import RemoteFault
from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import FinishReason
from cluster.balancer.instructions import Deliver, Fail, Failure
from cluster.balancer.stats import RequestStats
from cluster.balancer.text import ChoiceText, TextDelta, TextToken


class GenerationFailed(RemoteFault):
    """There is no (further) answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind.value}: {failure.detail}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """More of one choice; `finish` comes once for each choice, with its last text and tokens.

    `prompt_logprobs`, if asked for, come once too, with the first delta.
    """

    index: int
    text: str
    finish: FinishReason | None
    tokens: tuple[TextToken, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)
class _Choice:
    """`held` is a delta that waits for company."""

    text: ChoiceText
    stats: RequestStats
    held: ChoiceDelta | None = None
    num_held: int = 0
    spoke: bool = False


class Generation:
    """Choices are numbered like `texts`. One failed request fails the whole and cancels the rest.

    Belongs to the event loop. `put` feeds it; `end(index, hit)` is called for each request that is
    to stop, because of a stop string or not. From a choice's second delta on, one is made of at least
    `interval` tokens; the last one may be shorter.
    """

    def __init__(
        self,
        texts: Sequence[ChoiceText],
        stats: Sequence[RequestStats],
        end: Callable[[int, bool], None],
        interval: int = 1,
    ) -> None:
        self._news: asyncio.Queue[tuple[int, Deliver | Fail]] = asyncio.Queue()
        self._choices = [_Choice(*of_choice) for of_choice in zip(texts, stats, strict=True)]
        self._open = set(range(len(texts)))
        self._end = end
        self._interval = interval

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all choices so far, as far as they count for the client."""
        return sum(choice.text.num_tokens for choice in self._choices)

    def stats_of(self, index: int) -> RequestStats:
        """How choice `index` fares; complete once it has finished."""
        return self._choices[index].stats

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
                delta = self._delta(index, what)
                if delta is not None:
                    yield delta
        finally:
            self.cancel()

    def _delta(self, index: int, what: Deliver) -> ChoiceDelta | None:
        """The next delta of a choice, or None while it waits for more tokens."""
        choice = self._choices[index]
        new = choice.text.push(what.token_ids, what.finish, what.logprobs)
        if new.finish is not None:
            self._open.discard(index)
            if what.finish is None:
                self._end(index, True)
        delta = _joined(index, choice.held, new, what.prompt_logprobs)
        choice.num_held += new.num_tokens
        if choice.spoke and new.finish is None and choice.num_held < self._interval:
            choice.held = delta
            return None
        choice.spoke, choice.held, choice.num_held = True, None, 0
        return delta


def _joined(
    index: int, held: ChoiceDelta | None, new: TextDelta, prompt: tuple[TokenLogprobs, ...]
) -> ChoiceDelta:
    if held is None:
        return ChoiceDelta(index, new.text, new.finish, new.tokens, prompt)
    return ChoiceDelta(index, held.text + new.text, new.finish, held.tokens + new.tokens, prompt)

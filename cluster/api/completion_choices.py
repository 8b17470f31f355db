"""From deltas of text to choices of a completion: a chunk's, or the whole ones.

Owns what stands in a choice, in which chunk, and that a whole choice is its chunks joined.
"""

from collections.abc import Callable, Sequence

from bootstrap.messages import TokenLogprobs
from cluster.api.answer_schema import CompletionChoice, CompletionLogprobs, PromptLogprobs
from cluster.api.answers import ids_if
from cluster.api.echo import Echo
from cluster.api.logprobs import TokenNames
from cluster.api.schema import CompletionRequest
from cluster.balancer.asks import Ask
from cluster.balancer.generation import ChoiceDelta
from cluster.balancer.stats import RequestStats


class CompletionChoices:
    """Takes each choice's deltas in order; the first one brings what is said of the prompt."""

    def __init__(
        self,
        body: CompletionRequest,
        ask: Ask,
        names: TokenNames,
        echoes: Sequence[Echo],
        stats_of: Callable[[int], RequestStats],
    ) -> None:
        self._body = body
        self._ask = ask
        self._names = names
        self._echoes = echoes
        self._stats_of = stats_of
        self._begun: set[int] = set()
        self._prompt_scores: dict[int, tuple[TokenLogprobs, ...]] = {}

    def next(self, delta: ChoiceDelta) -> CompletionChoice | None:
        """A chunk's choice; None for a delta that shows nothing."""
        body, index = self._body, delta.index
        self._prompt_scores.setdefault(index, delta.prompt_logprobs)
        is_first = index not in self._begun
        text = (self._echo(index).text if is_first else "") + delta.text
        if not text and delta.finish is None:
            return None
        self._begun.add(index)
        prompt = self._ask.prompts[index // self._ask.n]
        ended = delta.finish is not None
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=self._logprobs(delta, is_first=is_first),
            finish_reason=delta.finish.value if delta.finish else None,
            prompt_logprobs=self._prompt_logprobs(index),
            prompt_token_ids=list(prompt) if body.return_token_ids and is_first else None,
            token_ids=ids_if(body.return_token_ids, delta.tokens),
            stats=self._stats_of(index).as_fields() if body.include_stats and ended else None,
        )

    def joined(self, deltas: Sequence[ChoiceDelta], index: int) -> CompletionChoice:
        """The whole choice `index`, whose last delta has come."""
        own = [delta for delta in deltas if delta.index == index]
        whole = self.next(
            ChoiceDelta(
                index,
                "".join(delta.text for delta in own),
                own[-1].finish,
                tuple(token for delta in own for token in delta.tokens),
                own[0].prompt_logprobs,
            )
        )
        assert whole is not None
        return whole

    def _echo(self, index: int) -> Echo:
        return self._echoes[index // self._ask.n] if self._echoes else Echo("", ())

    def _logprobs(self, delta: ChoiceDelta, *, is_first: bool) -> CompletionLogprobs | None:
        num_top = self._body.logprobs
        if num_top is None:
            return None
        echo = self._echo(delta.index)
        token_ids: list[int] = []
        offsets: list[int] = []
        scores: list[TokenLogprobs | None] = []
        if is_first and self._echoes:
            token_ids += self._ask.prompts[delta.index // self._ask.n]
            offsets += echo.offsets
            scores += [None, *self._prompt_scores[delta.index]]
        for token in delta.tokens:
            token_ids.append(token.token_id)
            offsets.append(len(echo.text) + token.offset)
            scores.append(token.logprobs)
        if not token_ids:
            return None
        return self._names.completion(token_ids, scores, offsets, num_top)

    def _prompt_logprobs(self, index: int) -> PromptLogprobs | None:
        num_top = self._body.prompt_logprobs
        if num_top is None:
            return None
        prompt = self._ask.prompts[index // self._ask.n]
        return self._names.prompt(prompt, self._prompt_scores[index], num_top)

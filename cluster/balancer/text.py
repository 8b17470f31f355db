"""One choice's text: token ids in, text that may be shown out, and with it the tokens it is made of."""

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.detokenizer import Decode, IncrementalDetokenizer
from cluster.balancer.stops import StopStrings

_NOWHERE = sys.maxsize  # the offset of a token that is not in the text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """How output ids become an answer's text.

    `include_stop` shows what ended the text, a stop string or a stop token. Where `prompt_only`, what
    was generated belongs to no answer: the prompt alone was of interest.
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    prompt_only: bool = False


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a choice. `offset` is where in the choice's text its first character stands.

    Not `shown` are tokens that ended the text without being in it: a stop token, a stop string's.
    """

    token_id: int
    offset: int
    shown: bool
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """`num_tokens` more tokens were counted; `text` and `tokens` are what may be shown by now.

    A token comes with the text that shows its first character, all others with the last delta, which
    alone has `finish`.
    """

    text: str
    num_tokens: int
    finish: FinishReason | None = None
    tokens: tuple[TextToken, ...] = ()


class ChoiceText:
    """Detokenizes and applies stop strings; after a delta with `finish` nothing more is taken.

    The text of the first `min_tokens` tokens is not searched. A token that ended the request as a stop
    token is counted but not shown, unless the rules include it.
    """

    def __init__(self, decode: Decode, sampling: SamplingParams, rules: TextRules) -> None:
        self._detokenizer = IncrementalDetokenizer(decode)
        self._stops = StopStrings(rules.stops, include=rules.include_stop)
        self._sampling = sampling
        self._rules = rules
        self._num_shown = 0  # characters returned
        self._waiting: deque[tuple[int, int, TokenLogprobs | None]] = deque()
        self.num_tokens = 0

    def push(
        self,
        token_ids: Sequence[int],
        finish: FinishReason | None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> TextDelta:
        """Take the next ids; `finish` when the engine ended the request with the last of them.

        `logprobs` is parallel to the ids, or empty.
        """
        if self._rules.prompt_only:
            return TextDelta("", 0, finish and FinishReason.LENGTH)
        pieces: list[str] = []
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            scored = logprobs[index] if logprobs else None
            if index == len(token_ids) - 1 and self._ends_unseen(token_id, finish):
                self._waiting.append((token_id, _NOWHERE, scored))
                continue
            text = self._detokenizer.push(token_id)
            self._waiting.append((token_id, self._detokenizer.start, scored))
            pieces.append(self._shown(text))
            if self._stops.hit:
                return self._delta(pieces, index + 1, FinishReason.STOP)
        if finish is not None:
            pieces.append(self._shown(self._detokenizer.finish()))
            finish = FinishReason.STOP if self._stops.hit else finish
            pieces.append(self._stops.finish())
        return self._delta(pieces, len(token_ids), finish)

    def _ends_unseen(self, token_id: int, finish: FinishReason | None) -> bool:
        """Whether this last token is a stop token that is not to be shown."""
        stopped = finish is FinishReason.STOP and token_id in self._sampling.stop_token_ids
        return stopped and not self._rules.include_stop

    def _shown(self, text: str) -> str:
        searched = self.num_tokens > self._sampling.min_tokens
        return self._stops.push(text) if searched else text

    def _delta(
        self, pieces: Sequence[str], num_tokens: int, finish: FinishReason | None
    ) -> TextDelta:
        text = "".join(pieces)
        self._num_shown += len(text)
        tokens: list[TextToken] = []
        while self._waiting and (finish or self._waiting[0][1] < self._num_shown):
            token_id, offset, scored = self._waiting.popleft()
            shown = offset < self._num_shown
            tokens.append(TextToken(token_id, min(offset, self._num_shown), shown, scored))
        return TextDelta(text, num_tokens, finish, tuple(tokens))

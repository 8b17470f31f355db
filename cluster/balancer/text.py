"""One choice's text: token ids in, text that may be shown out."""

from dataclasses import dataclass

from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.detokenizer import Decode, IncrementalDetokenizer
from cluster.balancer.stops import StopStrings


@dataclass(frozen=True, slots=True)
class TextDelta:
    """`num_tokens` more tokens and the text they release. `finish` once, with the last delta."""

    text: str
    num_tokens: int
    finish: FinishReason | None = None


class ChoiceText:
    """Detokenizes and applies stop strings; after a delta with `finish` nothing more is taken.

    The text of the first `min_tokens` tokens is not searched. A token that ended the request as a stop
    token is counted but not shown.
    """

    def __init__(self, decode: Decode, sampling: SamplingParams, stops: tuple[str, ...]) -> None:
        self._detokenizer = IncrementalDetokenizer(decode)
        self._stops = StopStrings(stops)
        self._sampling = sampling
        self.num_tokens = 0

    def push(self, token_ids: tuple[int, ...], finish: FinishReason | None) -> TextDelta:
        """Take the next ids; `finish` when the engine ended the request with the last of them."""
        pieces: list[str] = []
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            if (
                finish is FinishReason.STOP
                and index == len(token_ids) - 1
                and token_id in self._sampling.stop_token_ids
            ):
                continue
            pieces.append(self._shown(self._detokenizer.push(token_id)))
            if self._stops.hit:
                return TextDelta("".join(pieces), index + 1, FinishReason.STOP)
        if finish is not None:
            pieces.append(self._shown(self._detokenizer.finish()))
            finish = FinishReason.STOP if self._stops.hit else finish
            pieces.append(self._stops.finish())
        return TextDelta("".join(pieces), len(token_ids), finish)

    def _shown(self, text: str) -> str:
        searched = self.num_tokens > self._sampling.min_tokens
        return self._stops.push(text) if searched else text

"""Stop strings: found across pieces of text, cut from it, and never shown in part.

Pure text; which ids hold a whole stop string is worked out here too, from the vocabulary's texts.
"""

from collections.abc import Sequence

from cluster.balancer.detokenizer import REPLACEMENT


class StopStrings:
    """What `push` returned so far is final: no character of it belongs to a stop string.

    With `include` the stop string that is hit is shown itself, and nothing after it. The stop string
    that is complete first wins; of two that end together, the longer one. The result does not depend
    on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """Text that may be shown now; after a hit, nothing more."""
        if self.hit:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.hit, self._held = True, ""
            end, start = min(ends)
            return text[: end if self._include else start]
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """The held tail, when the text ends without completing a stop string."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for num in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-num:]) for stop in self._stops):
                return num
        return 0


def bootstrap_stop_ids(vocabulary: Sequence[str], stops: Sequence[str]) -> tuple[int, ...]:
    """Ids whose own text holds a whole stop string: sampling one first ends the request at once.

    `vocabulary[i]` is the text of id i alone. Stop strings with U+FFFD are left out: that character
    also stands for a part of another one.
    """
    whole = [stop for stop in stops if REPLACEMENT not in stop]
    return tuple(
        token_id for token_id, text in enumerate(vocabulary) if any(s in text for s in whole)
    )

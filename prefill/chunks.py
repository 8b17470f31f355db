"""One step as it is put together: whose tokens, out of a budget of so many.

Pure; knows prompts and chunks, not who should come first.
"""

from engine.core import StepPlan
from engine.step import SampleAt, SequenceChunk
from prefill.request import PrefillRequest


class StepDraft:
    """No prompt is in it twice, and `num_left` tokens of the budget are not given away."""

    def __init__(self, budget: int) -> None:
        self.num_left = budget
        self._chunks: dict[bytes, SequenceChunk] = {}

    def add(self, request: PrefillRequest, at_most: int | None = None) -> int:
        """Give the prompt what it can use; how many tokens that is.

        It is 0 when nothing is left, the prompt is in already, or all it has left waits for its grammar.
        """
        budget = self.num_left if at_most is None else min(at_most, self.num_left)
        num_tokens = min(budget, request.num_computable)
        if num_tokens == 0 or request.room in self._chunks:
            return 0
        self._chunks[request.room] = _chunk(request, request.num_computed + num_tokens)
        self.num_left -= num_tokens
        return num_tokens

    def plan(self) -> StepPlan | None:
        """The step, or None when nobody is in it."""
        if not self._chunks:
            return None
        return StepPlan(tuple(self._chunks), tuple(self._chunks.values()))


def _chunk(request: PrefillRequest, end: int) -> SequenceChunk:
    """The prompt's next tokens, up to position `end`."""
    dispatch, token_ids = request.dispatch, request.dispatch.prompt_token_ids
    start = request.num_computed
    sample = None
    if end == request.num_tokens:
        position, grammar = dispatch.output_offset, request.grammar
        sample = SampleAt(dispatch.sampling, position, token_ids, grammar=grammar)
    return SequenceChunk(
        token_ids[start:end],
        start,
        request.pages,
        sample,
        dispatch.num_prompt_logprobs or 0,
        token_ids[start + 1 : min(end + 1, request.num_scored)],
    )

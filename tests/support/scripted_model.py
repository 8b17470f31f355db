"""A model that says what it is told: for tests that need a certain token at a certain position.

Everything around the model is real. KV pages are moved but hold nothing that matters.
"""

from collections.abc import Sequence

from bootstrap.messages import TokenLogprobs
from engine.core import StepPlan, StepResult
from engine.step import SampleAt, SampledToken, SequenceChunk
from engine.stepper import ModelStepper
from tests.support.tiny_model import EOS_TOKEN_ID


class Script:
    """Output ids by prompt ids. What neither `say` nor `otherwise` covers is `end`, again and again.

    May be changed between requests, from any thread; engines that share it agree at every position,
    so the first token comes from prefill and the rest from decode, also in continued attempts.
    """

    def __init__(self, otherwise: Sequence[int] = (), *, end: int = EOS_TOKEN_ID) -> None:
        self.otherwise = tuple(otherwise)
        self.end = end
        self._outputs: dict[tuple[int, ...], tuple[int, ...]] = {}

    def say(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Answer this very prompt with `output`, then `end`."""
        self._outputs[tuple(prompt)] = tuple(output)

    def token_at(self, at: SampleAt) -> int:
        """The token that the script has for `at`."""
        output = self._outputs.get(tuple(at.prompt_token_ids), self.otherwise)
        return output[at.position] if at.position < len(output) else self.end


class ScriptedStepper:
    """Runs a plan without its model; swaps are carried out all the same.

    A token's log probability is that of `logprob_of`, and its rivals are the ids that follow it.
    """

    def __init__(self, script: Script, stepper: ModelStepper) -> None:
        self._script = script
        self._stepper = stepper

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        """One result per chunk of the plan."""
        self._stepper.run(StepPlan((), (), plan.swaps))
        return [self._result(chunk) for chunk in plan.chunks]

    def _result(self, chunk: SequenceChunk) -> StepResult:
        at = chunk.sample
        if at is None:
            return None
        token_id = self._script.token_at(at)
        scored = scored_token(token_id, at.params.num_logprobs or 0)
        return SampledToken(token_id, scored.logprob, scored.top)


def logprob_of(token_id: int, rank: int = 0) -> float:
    """The made-up log probability of a token, or of the one `rank` places behind it."""
    return -0.25 - 0.001 * token_id - rank


def scored_token(token_id: int, num_logprobs: int) -> TokenLogprobs:
    """A scripted token's log probability and alternatives."""
    top = tuple((token_id + i, logprob_of(token_id, i)) for i in range(num_logprobs))
    return TokenLogprobs(logprob_of(token_id), top)

"""One engine that does both phases, asked like the cluster: what every answer must be, by brute force.

Knows nothing of the balancer's text handling: texts are whole decodes, stop strings are searched in
every prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.asks import sample_seed
from engine.loader import load_model
from engine.solo import SoloEngine
from engine.step import SampledToken
from engine.tokenizer import Tokenizer
from tests.support.tiny_model import EOS_TOKEN_ID, SPECIAL_TOKENS

MAX_TOKENS = 16
CHUNK_SIZE = 7


@dataclass(frozen=True, slots=True)
class Case:
    """Fields of a body, and what they come to: sampling parameters and rules for the text."""

    fields: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    n: int = 1


@dataclass(frozen=True, slots=True)
class Expected:
    """One choice. `num_shown` of its tokens are part of its text."""

    text: str
    finish: str
    tokens: tuple[SampledToken, ...]
    num_shown: int

    @property
    def ids(self) -> list[int]:
        """All tokens that count."""
        return [token.token_id for token in self.tokens]


class Oracle:
    """Answers cases on a model folder."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer = Tokenizer(model_dir)
        self._solo = SoloEngine(load_model(model_dir, "float64", "cpu"), block_size=4)

    def choices(self, prompt: Sequence[int], case: Case) -> list[Expected]:
        """All samples of a prompt."""
        fixed = {"max_tokens": MAX_TOKENS, "stop_token_ids": (EOS_TOKEN_ID,), "temperature": 0.0}
        sampling = {"seed": 0, **fixed, **case.sampling}
        samples = [
            SamplingParams(**{**sampling, "seed": sample_seed(sampling["seed"], sample)})
            for sample in range(case.n)
        ]
        outputs = self._solo.generate_tokens([prompt] * case.n, samples, CHUNK_SIZE)
        return [self._choice(o, p, case) for o, p in zip(outputs, samples, strict=True)]

    def prompt_scores(self, prompt: Sequence[int], num: int) -> tuple[TokenLogprobs, ...]:
        """Of every prompt token but the first."""
        params = SamplingParams(seed=0, max_tokens=1, temperature=0.0)
        ((token,),) = self._solo.generate_tokens([prompt], [params], CHUNK_SIZE, num)
        return token.prompt_logprobs

    def _choice(
        self, output: Sequence[SampledToken], params: SamplingParams, case: Case
    ) -> Expected:
        finish = output[-1].finish_at(params, len(output) - 1)
        by_token = finish is FinishReason.STOP and output[-1].token_id in params.stop_token_ids
        num_visible = len(output) - (by_token and not case.include_stop)
        for num in range(params.min_tokens + 1, num_visible + 1):
            text = self.decode(output[:num], case)
            at = _first_stop(text, case)
            if at is not None:
                return self._cut(text[:at], output[:num], "stop", case)
        assert finish is not None
        text = self.decode(output[:num_visible], case)
        return self._cut(text, output, finish.value, case)

    def _cut(self, text: str, output: Sequence[SampledToken], finish: str, case: Case) -> Expected:
        """Shown are the tokens whose first character is within the text."""
        raw = [self._bytes(token.token_id, case) for token in output]
        starts = [
            len((b"".join(raw[:index]) + own[:1]).decode(errors="replace")) - bool(own)
            for index, own in enumerate(raw)
        ]
        num_shown = sum(start < len(text) for start in starts)
        return Expected(text, finish, tuple(output), num_shown)

    def _bytes(self, token_id: int, case: Case) -> bytes:
        skipped = token_id < len(SPECIAL_TOKENS) and case.skip_special_tokens
        return b"" if skipped else self.tokenizer.bytes_of(token_id)

    def decode(self, tokens: Sequence[SampledToken], case: Case) -> str:
        """The whole text of tokens."""
        ids = [token.token_id for token in tokens]
        return self.tokenizer.decode(ids, skip_special_tokens=case.skip_special_tokens)


def _first_stop(text: str, case: Case) -> int | None:
    """Where the text ends, if it holds a stop string: by whichever is complete first."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in case.stops if text[:end].endswith(stop)]
        if starts:
            return end if case.include_stop else min(starts)
    return None

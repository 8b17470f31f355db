"""Grammars compiled for a real tokenizer, and the child process that tries them first."""

import json
import os
import random
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bootstrap.sampling import FinishReason, GrammarKind, GrammarSpec, SamplingParams
from engine import grammar_probe
from engine.grammar import BadGrammar
from engine.grammar_compiler import Grammar, GrammarCompiler
from engine.grammar_probe import GrammarProbe, GrammarUnchecked
from engine.sampler import sample
from engine.step import GrammarFault, SampleAt, SampledToken, SampleMemory
from engine.tokenizer import Tokenizer
from tests.support.tiny_model import EOS_TOKEN_ID, VOCAB_SIZE, make_tiny_model

_K = GrammarKind
BUSY = json.dumps({"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}.*"} for i in range(100)]})
DEEP = "start: a0\n" + "\n".join(f'a{i}: "x" a{i + 1}' for i in range(3200)) + '\na3200: "y"'


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer(model_dir)


@pytest.fixture(scope="module")
def compiler(model_dir: Path) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(model_dir)
    yield compiler
    compiler.close()


def generate(
    grammar: Grammar, *, seed: int = 0, max_tokens: int = 200, **params: object
) -> tuple[list[int], FinishReason | None]:
    """What a model of random logits says under the grammar, at every step from a new memory too."""
    spec = GrammarSpec(_K.REGEX, "unused")
    values = {"stop_token_ids": (EOS_TOKEN_ID,), "temperature": 1.0, **params}
    sampling = SamplingParams(seed=seed, max_tokens=max_tokens, grammar=spec, **values)
    output: list[int] = []
    memory = SampleMemory()
    random_bits = torch.Generator().manual_seed(seed)
    while True:
        logits = torch.randn(1, VOCAB_SIZE, generator=random_bits) * 2
        token_ids, position = [7, 8, *output], len(output)
        (kept,) = sample(logits, [SampleAt(sampling, position, token_ids, memory, grammar)])
        (fresh,) = sample(logits, [SampleAt(sampling, position, token_ids, grammar=grammar)])
        assert kept == fresh
        assert isinstance(kept, SampledToken), kept
        output.append(kept.token_id)
        finish = kept.finish_at(sampling, position)
        if finish is not None:
            return output, finish


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        (GrammarSpec(_K.REGEX, "[a-f]{2,5}-[0-9]{3}"), re.compile("[a-f]{2,5}-[0-9]{3}").fullmatch),
        (GrammarSpec(_K.CHOICE, '["yes", "no\\n", "☃/\\""]'), {"yes", "no\n", '☃/"'}.__contains__),
        (GrammarSpec(_K.EBNF, 'start: "<" /[xy]{1,3}/ ">"'), re.compile("<[xy]{1,3}>").fullmatch),
        (GrammarSpec(_K.EBNF, 'root ::= "a" | "bc"'), {"a", "bc"}.__contains__),
        (
            GrammarSpec(_K.JSON_SCHEMA, json.dumps(SCHEMA)),
            lambda text: set(json.loads(text)) == {"n", "ok"},
        ),
    ],
)
def test_what_is_sampled_matches(
    compiler: GrammarCompiler, tokenizer: Tokenizer, spec: GrammarSpec, matches: object
) -> None:
    grammar = compiler.compile(spec)
    texts = set()
    for seed in range(12):
        output, finish = generate(grammar, seed=seed)
        assert finish is FinishReason.STOP
        text = tokenizer.decode(output)
        assert matches(text), text
        texts.add(text)
    assert len(texts) > 1


def test_a_text_that_can_only_end_needs_no_end_token(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec(_K.CHOICE, '["yes", "no"]'))
    for ignoring in ((), (EOS_TOKEN_ID,)):
        output, finish = generate(grammar, stop_token_ids=ignoring)
        assert EOS_TOKEN_ID not in output
        assert finish is FinishReason.STOP


def test_an_end_token_comes_only_where_the_text_may_end(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec(_K.REGEX, "(ab)+"))
    for seed in range(10):
        output, finish = generate(grammar, seed=seed, logit_bias=((EOS_TOKEN_ID, 2.0),))
        assert output[-1] == EOS_TOKEN_ID
        assert finish is FinishReason.STOP
        assert len(output) > 1


def test_min_tokens_holds_the_end_back_while_there_is_anything_else(
    compiler: GrammarCompiler,
) -> None:
    more = compiler.compile(GrammarSpec(_K.REGEX, "[ab]+"))
    output, _ = generate(more, min_tokens=20, logit_bias=((EOS_TOKEN_ID, 50.0),))
    assert len(output) == 21
    done = compiler.compile(GrammarSpec(_K.REGEX, "ab?"))
    output, finish = generate(done, min_tokens=20)
    assert len(output) <= 2
    assert finish is FinishReason.STOP


def test_a_length_limit_ends_a_text_that_goes_on(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec(_K.REGEX, "a{50}"))
    assert generate(grammar, max_tokens=3)[1] is FinishReason.LENGTH


def test_output_that_contradicts_its_grammar_is_that_rows_fault(
    compiler: GrammarCompiler,
) -> None:
    grammar = compiler.compile(GrammarSpec(_K.REGEX, "[0-9]+"))
    spec = GrammarSpec(_K.REGEX, "[0-9]+")
    bound = SamplingParams(seed=0, max_tokens=9, temperature=0.0, grammar=spec)
    free = SamplingParams(seed=0, max_tokens=9, temperature=0.0)
    logits = torch.randn(2, VOCAB_SIZE)
    bad, good = sample(
        logits, [SampleAt(bound, 1, (7, 200), grammar=grammar), SampleAt(free, 0, (7,))]
    )
    assert isinstance(bad, GrammarFault)
    assert isinstance(good, SampledToken)


def test_compiled_grammars_are_remembered_and_bounded(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.grammar_compiler.MAX_REMEMBERED", 3)
    first = compiler.compile(GrammarSpec(_K.REGEX, "x1"))
    assert compiler.compile(GrammarSpec(_K.REGEX, "x1")) is first
    for number in range(2, 6):
        compiler.compile(GrammarSpec(_K.REGEX, f"x{number}"))
    assert compiler.compile(GrammarSpec(_K.REGEX, "x1")) is not first


def test_a_thread_answers_with_a_grammar_or_a_reason(compiler: GrammarCompiler) -> None:
    answers: dict[str, object] = {}
    done = threading.Event()

    def take(name: str, outcome: object) -> None:
        answers[name] = outcome
        if len(answers) == 2:
            done.set()

    compiler.submit(GrammarSpec(_K.REGEX, "good"), lambda outcome: take("good", outcome))
    compiler.submit(GrammarSpec(_K.REGEX, "(bad"), lambda outcome: take("bad", outcome))
    assert done.wait(30)
    assert isinstance(answers["good"], Grammar)
    assert "unclosed group" in str(answers["bad"])


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_the_probe_outlives_what_hangs_or_overflows(model_dir: Path, with_tokenizer: bool) -> None:
    path = model_dir / "tokenizer.json" if with_tokenizer else None
    probe = GrammarProbe(path)
    try:
        assert probe.verdict(GrammarSpec(_K.REGEX, "[0-9]+")) is None
        for hostile in (GrammarSpec(_K.JSON_SCHEMA, BUSY), GrammarSpec(_K.EBNF, DEEP)):
            for _ in range(2):
                assert "too complex" in str(probe.verdict(hostile))
        assert probe.verdict(GrammarSpec(_K.REGEX, "[0-9]+x")) is None
        assert "Invalid type" in str(probe.verdict(GrammarSpec(_K.JSON_SCHEMA, '{"type": "no"}')))
        assert "65536" in str(probe.verdict(GrammarSpec(_K.REGEX, "a" * 70_000)))
    finally:
        probe.close()
    with pytest.raises(GrammarUnchecked, match="did not start"):
        probe.verdict(GrammarSpec(_K.REGEX, "[0-9]+y"))


def test_a_probe_that_was_killed_is_started_again(model_dir: Path) -> None:
    probe = GrammarProbe(model_dir / "tokenizer.json")
    try:
        assert probe.verdict(GrammarSpec(_K.REGEX, "a")) is None
        child = probe._child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
        assert probe.verdict(GrammarSpec(_K.REGEX, "b")) is None
    finally:
        probe.close()


def test_a_busy_machine_is_no_verdict(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, probe = GrammarSpec(_K.REGEX, "[a-z]+"), GrammarProbe()
    try:
        assert probe.verdict(GrammarSpec(_K.REGEX, "a")) is None
        child = probe._child
        assert child is not None
        os.kill(child.pid, signal.SIGSTOP)  # as if it got no turn
        with monkeypatch.context() as patch:
            patch.setattr(grammar_probe, "WALL_S", 0.2)
            with pytest.raises(GrammarUnchecked, match="too busy"):
                probe.verdict(spec)
        assert probe.verdict(spec) is None
    finally:
        probe.close()


def test_a_bad_grammar_is_refused_before_it_is_compiled_here(compiler: GrammarCompiler) -> None:
    with pytest.raises(BadGrammar, match="too complex"):
        compiler.compile(GrammarSpec(_K.JSON_SCHEMA, BUSY))


def test_random_bytes_are_refused_or_compile(compiler: GrammarCompiler) -> None:
    dice = random.Random(3)
    alphabet = '(){}[]|&~*+?.,:;"/\\<>%^$ \n\tabcstart0129_=-'
    for _ in range(150):
        text = "".join(dice.choices(alphabet, k=dice.randint(0, 60)))
        for kind in (_K.REGEX, _K.EBNF, _K.JSON_SCHEMA):
            spec = GrammarSpec(kind, ("start: " if kind is _K.EBNF else "") + text)
            try:
                grammar = compiler.compile(spec)
            except BadGrammar:
                continue
            generate(grammar, max_tokens=5)

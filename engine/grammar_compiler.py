"""Grammars compiled for one model's tokenizer, off the engine's loop, and remembered.

The tokenizer is read when the first grammar comes. A compiled grammar is only ever read; each request
walks its own `GrammarState` through it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from bootstrap.sampling import GrammarSpec
from engine.grammar import BadGrammar, compilable_text, parser_limits
from engine.grammar_probe import GrammarProbe
from engine.model_folder import TOKENIZER_FILE
from engine.tokenizer import Tokenizer

MAX_REMEMBERED = 32
NUM_THREADS = 2


class GrammarState:
    """Where one output stands in its grammar: a function of the tokens it has taken."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.num_tokens = 0

    def take(self, token_ids: list[int]) -> None:
        """Advance over output tokens; raises BadGrammar for one that the grammar does not allow."""
        self._matcher.consume_tokens(token_ids)
        self._check()
        self.num_tokens += len(token_ids)

    def mask(self) -> bytes:
        """One bit per token id, least significant first: who may come next.

        EOS ids are among them exactly where the text may end. Raises BadGrammar when the grammar takes
        too much work here.
        """
        mask = self._matcher.compute_bitmask()
        self._check()
        return bytes(mask)

    @property
    def complete(self) -> bool:
        """Whether the text can only end here."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BadGrammar(self._matcher.get_error())


class Grammar:
    """A compiled grammar; whoever holds one needs no cache to have kept it."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._start = matcher

    def begin(self) -> GrammarState:
        """The state before the first output token."""
        return GrammarState(self._start.deep_copy())


class GrammarCompiler:
    """Thread safe. Close it: its threads and its probe end."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._probe = GrammarProbe(model_dir / TOKENIZER_FILE)
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._lock = threading.Lock()  # guards the next two
        self._tokenizer: LLTokenizer | None = None
        self._grammars: OrderedDict[GrammarSpec, Grammar] = OrderedDict()

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile here and now; raises BadGrammar, or GrammarUnchecked where this machine is too busy."""
        with self._lock:
            if spec in self._grammars:
                self._grammars.move_to_end(spec)
                return self._grammars[spec]
        problem = self._probe.verdict(spec)
        if problem is not None:
            raise BadGrammar(problem)
        tokenizer = self._loaded_tokenizer()
        text = compilable_text(spec)
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise BadGrammar(matcher.get_error())
        grammar = Grammar(matcher)
        with self._lock:
            self._grammars[spec] = grammar
            while len(self._grammars) > MAX_REMEMBERED:
                self._grammars.popitem(last=False)
        return grammar

    def submit(self, spec: GrammarSpec, done: Callable[[Grammar | BaseException], None]) -> None:
        """Compile on a thread; `done` gets the grammar or what `compile` raised, on that thread."""

        def finished(future: "Future[Grammar]") -> None:
            if not future.cancelled():
                error = future.exception()
                done(future.result() if error is None else error)

        self._threads.submit(self.compile, spec).add_done_callback(finished)

    def close(self) -> None:
        """Drop what waits, end what runs. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._probe.close()

    def _loaded_tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _load(self._model_dir)
            return self._tokenizer


def _load(model_dir: Path) -> LLTokenizer:
    eos_token_ids = list(Tokenizer(model_dir).eos_token_ids)
    if not eos_token_ids:
        raise BadGrammar("this model has no EOS token to end a text with")
    text = (model_dir / TOKENIZER_FILE).read_text(encoding="utf-8")
    try:
        return LLTokenizer(text, eos_token=eos_token_ids)
    except ValueError as error:
        raise BadGrammar(f"this model's tokenizer is not supported: {error}") from error

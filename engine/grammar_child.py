"""The child of `engine.grammar_probe`: `python -m engine.grammar_child [TOKENIZER_JSON]`.

Reads a GrammarSpec as one line of JSON, answers with what is wrong with it as one JSON string, empty for
nothing. Ends with its input.
"""

import os
import resource
import signal
import sys
import threading
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from bootstrap.sampling import GrammarSpec
from engine.grammar import BadGrammar, compilable_text, parser_limits
from engine.grammar_probe import CPU_S, READY, WALL_S

MEMORY_BYTES = 2 << 30
STACK_BYTES = 1 << 20  # an eighth of what serving threads have
NICENESS = 10  # a grammar must not slow the tokens of others
NUM_MASKS = 32  # a walk into the grammar, whose first masks build most of its lexer


def problem_with(spec: GrammarSpec, tokenizer: LLTokenizer | None) -> str:
    """Empty when `spec` compiles and its first masks can be computed."""
    try:
        text = compilable_text(spec)
    except BadGrammar as error:
        return str(error)
    if tokenizer is None:
        return str(LLMatcher.validate_grammar(text, None, limits=parser_limits()))
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=parser_limits())
    for _ in range(NUM_MASKS):
        if matcher.is_error() or matcher.is_stopped():
            break
        allowed = matcher.compute_bitmask()
        token_id = _some_token(allowed)
        if token_id is None or not matcher.consume_token(token_id):
            break
    return str(matcher.get_error())


def _some_token(mask: bytes) -> int | None:
    """The last token of the mask: rarely a special one, and often a long one."""
    for index in range(len(mask) - 1, -1, -1):
        if mask[index]:
            return index * 8 + mask[index].bit_length() - 1
    return None


def _serve(tokenizer_path: str) -> None:
    tokenizer = None
    if tokenizer_path:
        tokenizer = LLTokenizer(Path(tokenizer_path).read_text(encoding="utf-8"), eos_token=[0])
    answers = sys.stdout.buffer
    answers.write(READY)
    answers.flush()
    for line in sys.stdin.buffer:
        # Either signal ends this process, also when nobody is left to kill it.
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, WALL_S)
        problem = problem_with(msgspec.json.decode(line, type=GrammarSpec), tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(msgspec.json.encode(problem) + b"\n")
        answers.flush()


def main() -> None:
    """Serve on a thread whose stack is small, within the memory limit."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=sys.argv[1:2])
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()

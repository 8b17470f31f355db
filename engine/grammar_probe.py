"""Whether a grammar compiles, found out in a child process that may hang or crash.

A few lines of a client's text can keep llguidance busy for hours or overflow its stack, and neither can
be stopped within a process. The child gets a time limit, a memory limit and a small stack; what passes
there is safe to compile elsewhere.
"""

import os
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import msgspec

from bootstrap.errors import ConfigError
from bootstrap.sampling import GrammarSpec
from engine.grammar import MAX_TEXT_CHARS

TIMEOUT_S = 3.0
START_TIMEOUT_S = 60.0
READY = b"ready\n"
MAX_REMEMBERED = 256


class GrammarProbe:
    """One child, started when it is first needed and again after it broke. Any thread may ask.

    With a tokenizer.json of `tokenizer_path` first masks are computed too. Close it: the child ends.
    """

    def __init__(self, tokenizer_path: Path | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._tokenizer_path = tokenizer_path
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._verdicts: OrderedDict[GrammarSpec, str | None] = OrderedDict()

    def verdict(self, spec: GrammarSpec) -> str | None:
        """What is wrong with `spec`, or None. Takes milliseconds; `timeout_s` at most, once it runs."""
        if len(spec.text) > MAX_TEXT_CHARS:
            return f"{len(spec.text)} characters; allowed are {MAX_TEXT_CHARS}"
        with self._lock:
            if spec in self._verdicts:
                self._verdicts.move_to_end(spec)
                return self._verdicts[spec]
            verdict = self._ask(spec)
            if not self._closed:
                self._verdicts[spec] = verdict
            if len(self._verdicts) > MAX_REMEMBERED:
                self._verdicts.popitem(last=False)
            return verdict

    def close(self) -> None:
        """End the child; whoever waits for it gets an answer. Idempotent."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()  # whoever holds the lock waits for it
        with self._lock:
            if self._child is not None:
                _end(self._child)
                self._child = None

    def _ask(self, spec: GrammarSpec) -> str | None:
        child = self._running()
        if child is None:
            return "grammars cannot be checked here"
        answer = _exchange(child, msgspec.json.encode(spec) + b"\n", self._timeout_s)
        if answer is None:
            _end(child)
            self._child = None
            return f"too complex: it needs more than {self._timeout_s:g} s or too much memory"
        return msgspec.json.decode(answer, type=str) or None

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The child, ready for a question; None where none can run."""
        if self._closed:
            return None
        if self._child is None:
            child = _start(self._tokenizer_path)
            self._child = child
            if self._closed or _exchange(child, b"", START_TIMEOUT_S) != READY:
                _end(child)
                self._child = None
        return self._child


def _start(tokenizer_path: Path | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "engine.grammar_child", str(tokenizer_path or "")]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)},
            start_new_session=True,  # the terminal's Ctrl-C is not for it
        )
    except OSError as error:
        raise ConfigError(f"cannot start {sys.executable} to check grammars: {error}") from error


def _exchange(child: "subprocess.Popen[bytes]", question: bytes, timeout_s: float) -> bytes | None:
    """One line out, one line back; None when the child is too slow or ends."""
    assert child.stdin is not None
    assert child.stdout is not None
    timer = threading.Timer(timeout_s, child.kill)
    timer.daemon = True
    timer.start()
    try:
        child.stdin.write(question)
        child.stdin.flush()
        return child.stdout.readline() or None
    except OSError:
        return None
    finally:
        timer.cancel()


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):  # a question that nobody will read
                stream.close()

"""Whether a grammar compiles, found out in a child process that may hang or crash.

A few lines of a client's text can keep llguidance busy for hours or overflow its stack, and neither can
be stopped within a process. The child gets a limit of computing time, a memory limit and a small stack;
what passes there is safe to compile elsewhere. What takes long because the machine is busy is not the
grammar's fault: then there is no verdict.
"""

import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import msgspec

from bootstrap.errors import RemoteFault
from bootstrap.sampling import GrammarSpec
from engine.grammar import MAX_TEXT_CHARS

CPU_S = 3.0
WALL_S = 10.0  # a child that did not get so much computing until then gets no more
START_TIMEOUT_S = 60.0
READY = b"ready\n"
MAX_REMEMBERED = 256


class GrammarUnchecked(RemoteFault):
    """A grammar that may be sound but cannot be checked now; another try may."""


class GrammarProbe:
    """One child, started when it is first needed and again after it broke. Any thread may ask.

    With a tokenizer.json of `tokenizer_path` first masks are computed too. Close it: the child ends.
    """

    def __init__(self, tokenizer_path: Path | None = None) -> None:
        self._tokenizer_path = tokenizer_path
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._verdicts: OrderedDict[GrammarSpec, str | None] = OrderedDict()

    def verdict(self, spec: GrammarSpec) -> str | None:
        """What is wrong with `spec`, or None; raises GrammarUnchecked. Takes milliseconds; a hostile one
        CPU_S of computing.
        """
        if len(spec.text) > MAX_TEXT_CHARS:
            return f"{len(spec.text)} characters; allowed are {MAX_TEXT_CHARS}"
        with self._lock:
            if spec in self._verdicts:
                self._verdicts.move_to_end(spec)
                return self._verdicts[spec]
            verdict = self._verdicts[spec] = self._ask(spec)
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
        asked_at = time.monotonic()
        answer = _exchange(child, msgspec.json.encode(spec) + b"\n", WALL_S)
        if answer is not None:
            return msgspec.json.decode(answer, type=str) or None
        _end(child)
        self._child = None
        if self._closed or time.monotonic() - asked_at >= WALL_S:
            raise GrammarUnchecked(f"no verdict within {WALL_S:g} s: this machine is too busy")
        return f"too complex: it needs more than {CPU_S:g} s of computing or too much memory"

    def _running(self) -> "subprocess.Popen[bytes] | None":
        """The child, ready for a question; None where it ends by itself at its start, GrammarUnchecked
        where it has no chance to start."""
        if self._child is not None and self._child.poll() is not None:
            _end(self._child)  # it died while nobody asked
            self._child = None
        if self._child is None and not self._closed:
            child = _start(self._tokenizer_path)
            self._child = child
            if self._closed or _exchange(child, b"", START_TIMEOUT_S) != READY:
                self._child = None
                if _end(child) >= 0:
                    return None
        if self._child is None:
            raise GrammarUnchecked("the process that checks grammars did not start")
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
        raise GrammarUnchecked(
            f"the process that checks grammars did not start: {error}"
        ) from error


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


def _end(child: "subprocess.Popen[bytes]") -> int:
    """Its exit code, as subprocess has it; that of its own end if it was dying already."""
    child.kill()
    code = child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):  # a question that nobody will read
                stream.close()
    return code

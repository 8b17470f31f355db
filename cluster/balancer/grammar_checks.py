"""Whether a client's grammar can be used, found out off the event loop and before any dispatch."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bootstrap.sampling import GrammarSpec
from engine.grammar_probe import GrammarProbe, GrammarUnchecked

MAX_WAITING = 64
MAX_WAIT_S = 20.0


class GrammarChecks:
    """Checks one grammar at a time, on a thread of its own. Belongs to the event loop."""

    def __init__(self, tokenizer_path: Path) -> None:
        self._probe = GrammarProbe(tokenizer_path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-check")
        self._num_waiting = 0

    async def problem_with(self, grammar: GrammarSpec) -> str | None:
        """What is wrong with `grammar`, for who wrote it; raises GrammarUnchecked."""
        if self._num_waiting >= MAX_WAITING:
            raise GrammarUnchecked("too many grammars wait to be checked")
        self._num_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            answer = loop.run_in_executor(self._thread, self._probe.verdict, grammar)
            return await asyncio.wait_for(answer, MAX_WAIT_S)
        except asyncio.TimeoutError as error:  # one that did not begin never does
            raise GrammarUnchecked(f"no verdict within {MAX_WAIT_S:g} s") from error
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """End the child process; whoever waits gets an answer."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._probe.close()

"""Text to ids and back, and chat templates, off the event loop."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from cluster.balancer.generation import GenerationFailed
from cluster.balancer.grammar_checks import GrammarChecks
from cluster.balancer.instructions import Failure, FailureKind
from cluster.balancer.stops import bootstrap_stop_ids
from engine.tokenizer import Tokenizer

MAX_CACHED_STOPS = 256
MAX_PENDING = 4096  # pieces of work for the threads, one call's 512 prompts being as many

_T = TypeVar("_T")


class Tokenization:
    """Long work runs on a few threads; `decode` of a few ids runs where it is called."""

    def __init__(self, tokenizer: Tokenizer, num_threads: int) -> None:
        self.tokenizer = tokenizer
        self.grammars = GrammarChecks(tokenizer.path)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="text")
        self._num_pending = 0
        self._stop_ids: OrderedDict[tuple[str, ...], tuple[int, ...]] = OrderedDict()

    async def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """A completion prompt's ids."""
        return tuple(await self.run(lambda: self.tokenizer.encode(text, add_special_tokens)))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of many ids, special tokens included."""
        return await self.run(lambda: self.tokenizer.decode(token_ids, False))

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], **variables: Any
    ) -> tuple[int, ...]:
        """A conversation's ids, up to where the answer begins; raises BadTemplateInput.

        `variables` are those of `Tokenizer.apply_chat_template`.
        """
        tokenizer = self.tokenizer
        work = lambda: tokenizer.apply_chat_template(messages, **variables)  # noqa: E731
        return tuple(await self.run(work))

    async def load_bytes(self) -> None:
        """Have `tokenizer.bytes_of` answer at once from here on."""
        await self.run(lambda: self.tokenizer.bytes_of(0))

    async def stop_ids(self, stops: tuple[str, ...]) -> tuple[int, ...]:
        """Ids whose own text holds one of `stops`; remembered for the sets seen last."""
        if not stops:
            return ()
        known = self._stop_ids.get(stops)
        if known is None:
            known = await self.run(lambda: bootstrap_stop_ids(self._vocabulary, stops))
            self._stop_ids[stops] = known
            if len(self._stop_ids) > MAX_CACHED_STOPS:
                self._stop_ids.popitem(last=False)
        else:
            self._stop_ids.move_to_end(stops)
        return known

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.grammars.close()

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do other long work with text here; raises GenerationFailed when too much waits already."""
        if self._num_pending >= MAX_PENDING:
            text = "Too many texts wait to be tokenized."
            raise GenerationFailed(Failure(FailureKind.OVERLOADED, text))
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_pending -= 1

    @cached_property
    def _vocabulary(self) -> tuple[str, ...]:
        tokenizer = self.tokenizer
        return tuple(tokenizer.decode((i,)) for i in range(tokenizer.vocab_size))

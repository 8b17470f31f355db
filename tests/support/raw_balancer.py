"""The least a balancer can be: dispatches attempts to chosen engines and collects what comes back."""

import threading
from dataclasses import dataclass, field
from typing import Any

from bootstrap.identity import Peer, WorkerRef, new_incarnation, new_room
from bootstrap.mailbox import Mailbox
from bootstrap.messages import (
    AbortRoom,
    DecodeDispatch,
    FailureReason,
    LegFailed,
    LegStats,
    Message,
    Ping,
    PrefillDispatch,
    TokenBatch,
    TokenLogprobs,
)
from bootstrap.sampling import FinishReason, SamplingParams
from engine.host import EngineHost
from tests.support.waiting import wait_for


@dataclass(slots=True)
class Outcome:
    """What came of one room."""

    room: bytes
    first: int = 0  # the first position that is awaited
    tokens: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: list[tuple[TokenLogprobs, ...]] = field(default_factory=list)  # each that came
    end: tuple[int, FinishReason] | None = None  # the last position, once it came
    failures: dict[str, LegFailed] = field(default_factory=dict)  # by worker id
    stats: dict[str, LegStats] = field(default_factory=dict)  # by worker id

    @property
    def finish(self) -> FinishReason | None:
        """Why it ended, once all of it is here: the last token may overtake the other engine's first."""
        if self.end is None or len(self.tokens) <= self.end[0] - self.first:
            return None
        return self.end[1]

    @property
    def output(self) -> list[int]:
        """The tokens in order of position; fails on a gap."""
        positions = sorted(self.tokens)
        assert positions == list(range(positions[0], positions[0] + len(positions))), positions
        return [self.tokens[position] for position in positions]


class RawBalancer:
    """A mailbox that remembers every room it dispatched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: dict[bytes, Outcome] = {}
        ref = WorkerRef("raw-balancer", new_incarnation())
        self.mailbox = Mailbox(ref, "127.0.0.1", self._on_message)
        self._engines: dict[WorkerRef, Peer] = {}
        self._stopping = threading.Event()
        self._asking = threading.Thread(target=self._ask, name="raw-balancer-asks", daemon=True)

    def __enter__(self) -> "RawBalancer":
        self.mailbox.start()
        self._asking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._asking.join()
        self.mailbox.stop()

    def _ask(self) -> None:
        """No member, it is taken for dead unless it is heard, as a real balancer is."""
        while not self._stopping.wait(1.0):
            for peer in list(self._engines.values()):
                self.mailbox.post(peer, Ping())

    def dispatch(
        self,
        prefill: EngineHost,
        decode: EngineHost,
        prompt: list[int],
        sampling: SamplingParams,
        *,
        output_offset: int = 0,
        deadline_s: float = 60.0,
        **prefill_only: Any,
    ) -> Outcome:
        """Begin an attempt; the outcome fills as messages come. `prefill_only` are its dispatch's."""
        outcome = Outcome(new_room(), output_offset)
        with self._lock:
            self._rooms[outcome.room] = outcome
        self._engines.update({engine.ref: engine.peer for engine in (prefill, decode)})
        me, token_ids = self.mailbox.peer, tuple(prompt)
        alone = sampling.max_tokens - output_offset == 1
        self.mailbox.post(
            prefill.peer,
            PrefillDispatch(
                room=outcome.room,
                request_id=f"raw-{outcome.room[:2].hex()}",
                attempt=1,
                deadline_s=deadline_s,
                reply_to=me,
                decode=None if alone else decode.peer,
                prompt_token_ids=token_ids,
                sampling=sampling,
                output_offset=output_offset,
                **prefill_only,
            ),
        )
        if not alone:
            self.mailbox.post(
                decode.peer,
                DecodeDispatch(
                    room=outcome.room,
                    request_id=f"raw-{outcome.room[:2].hex()}",
                    attempt=1,
                    deadline_s=deadline_s,
                    reply_to=me,
                    prefill=prefill.peer,
                    prompt_token_ids=token_ids,
                    sampling=sampling,
                    output_offset=output_offset,
                ),
            )
        return outcome

    def abort(self, engine: EngineHost, outcome: Outcome) -> None:
        """Cancel one leg."""
        self.mailbox.post(engine.peer, AbortRoom(outcome.room, FailureReason.CANCELLED))

    def generate(
        self, prefill: EngineHost, decode: EngineHost, prompt: list[int], sampling: SamplingParams
    ) -> list[int]:
        """A whole answer."""
        outcome = self.dispatch(prefill, decode, prompt, sampling)
        wait_for(lambda: outcome.finish or outcome.failures, 60.0, "an answer")
        assert not outcome.failures
        return outcome.output

    def _on_message(self, sender: Peer, message: Message) -> None:
        with self._lock:
            if isinstance(message, TokenBatch):
                for tokens in message.rooms:
                    outcome = self._rooms[tokens.room]
                    for index, token_id in enumerate(tokens.token_ids):
                        outcome.tokens[tokens.position + index] = token_id
                    for index, logprobs in enumerate(tokens.logprobs):
                        outcome.logprobs[tokens.position + index] = logprobs
                    if tokens.prompt_logprobs:
                        outcome.prompt_logprobs.append(tokens.prompt_logprobs)
                    if tokens.stats is not None:
                        outcome.stats[sender.ref.worker_id] = tokens.stats
                    if tokens.finish is not None:
                        last = tokens.position + len(tokens.token_ids) - 1
                        outcome.end = last, tokens.finish
            elif isinstance(message, LegFailed):
                self._rooms[message.room].failures[sender.ref.worker_id] = message

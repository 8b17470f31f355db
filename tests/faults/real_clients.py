"""Clients of a real cluster that remember exactly what they saw, and when.

An answer's outcome is one of the words below. `HUNG` and `FALSE` are never allowed: nothing came in time,
or a stream ended as if it were whole and was not.
"""

import itertools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.real_cluster import MODEL_NAME

ANSWERED = "answered"
REFUSED = "refused"  # 429, 503 or 504 before anything was said
BROKEN_OFF = "broken off"  # an error event after the first tokens, and the connection was closed
CUT = "cut"  # the connection ended without a word: the balancer itself was lost
LEFT = "left"  # the client went away
HUNG = "hung"
FALSE = "false"
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a client asks for. `leave_after` tokens it goes away."""

    prompt: tuple[int, ...]
    max_tokens: int = 32
    temperature: float = 0.0
    seed: int = 0
    stream: bool = True
    leave_after: int | None = None

    def body(self) -> dict[str, Any]:
        """As JSON for `/v1/completions`."""
        return {
            "model": MODEL_NAME,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": self.stream,
            "ignore_eos": True,
            "return_token_ids": True,
        }


@dataclass(slots=True, eq=False)
class Answer:
    """What one client saw; grows while the answer comes."""

    shape: Shape
    outcome: str = RUNNING
    detail: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    sent_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0

    def silence_after(self, since: float) -> float:
        """Seconds from `since` until something was heard again: a token, or the end."""
        later = [at for at in (*self.token_times, self.ended_at) if at > since]
        return min(later) - since if later else float("inf")

    def longest_silence(self) -> float:
        """The longest wait for anything."""
        times = [self.sent_at, *self.token_times, self.ended_at]
        return max(b - a for a, b in itertools.pairwise(times))


class Clients:
    """Asks in threads of their own, so that many run at once."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        self._url = f"{url}/v1/completions"
        self._timeout_s = timeout_s
        self._threads: list[threading.Thread] = []

    def begin(self, shape: Shape) -> Answer:
        """Ask now; the answer fills by itself."""
        answer = Answer(shape)
        thread = threading.Thread(target=self._ask, args=(answer,), daemon=True)
        thread.start()
        self._threads.append(thread)
        return answer

    def ask(self, shape: Shape) -> Answer:
        """Ask and wait for the end."""
        answer = Answer(shape)
        self._ask(answer)
        return answer

    def wait(self) -> None:
        """Block until every answer has ended."""
        for thread in self._threads:
            thread.join(self._timeout_s + 30)
            assert not thread.is_alive(), "a client's own thread hangs"
        self._threads.clear()

    def _ask(self, answer: Answer) -> None:
        try:
            # One silence bounds a stream: it must never say nothing for so long.
            with httpx.Client(timeout=self._timeout_s) as http:
                if answer.shape.stream:
                    self._read_stream(http, answer)
                else:
                    self._read_whole(http, answer)
        except httpx.TimeoutException as error:
            answer.outcome, answer.detail = HUNG, repr(error)
        except httpx.TransportError as error:
            answer.outcome, answer.detail = CUT, repr(error)
        answer.ended_at = time.monotonic()

    def _read_whole(self, http: httpx.Client, answer: Answer) -> None:
        reply = http.post(self._url, json=answer.shape.body())
        if reply.status_code != 200:
            _refused(answer, reply)
            return
        choice = reply.json()["choices"][0]
        _add(answer, choice)
        answer.outcome = ANSWERED if choice["finish_reason"] == "length" else FALSE

    def _read_stream(self, http: httpx.Client, answer: Answer) -> None:
        finish = None
        with http.stream("POST", self._url, json=answer.shape.body()) as reply:
            if reply.status_code != 200:
                reply.read()
                _refused(answer, reply)
                return
            for line in reply.iter_lines():
                data = line.removeprefix("data: ")
                if not line.startswith("data: "):
                    continue
                if data == "[DONE]":
                    whole = finish == "length" and len(answer.token_ids) == answer.shape.max_tokens
                    answer.outcome = ANSWERED if whole else FALSE
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    answer.outcome, answer.detail = BROKEN_OFF, json.dumps(chunk["error"])
                    continue
                _add(answer, chunk["choices"][0])
                finish = chunk["choices"][0]["finish_reason"]
                leave_after = answer.shape.leave_after
                if leave_after is not None and len(answer.token_ids) >= leave_after:
                    answer.outcome = LEFT
                    return
        if answer.outcome == RUNNING:
            answer.outcome, answer.detail = FALSE, f"ended without a word, finish {finish}"


def _add(answer: Answer, choice: dict[str, Any]) -> None:
    answer.text += choice["text"]
    token_ids: Sequence[int] = choice["token_ids"] or ()
    answer.token_ids.extend(token_ids)
    answer.token_times.extend([time.monotonic()] * len(token_ids))


def _refused(answer: Answer, reply: httpx.Response) -> None:
    """An honest refusal says when to come again, unless the deadline passed."""
    honest = reply.status_code == 504 or (
        reply.status_code in (429, 503) and "Retry-After" in reply.headers
    )
    answer.outcome = REFUSED if honest else FALSE
    answer.detail = f"{reply.status_code} {reply.text}"

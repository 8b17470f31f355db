"""Clients of a Service: stream after stream, each to a pod that the Service leads to at the time."""

import contextlib
import http.client
import itertools
import json
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

TIMEOUT_S = 60.0


class Load:
    """From entry to exit. A stream that does not end with a finish reason and `[DONE]` is a failure."""

    def __init__(
        self,
        enter: Callable[[Callable[[], None]], None],
        endpoints: Callable[[], list[str]],
        body: dict[str, Any],
        key: str,
        num_clients: int = 2,
    ) -> None:
        """`enter` calls a function on a thread whose sockets reach the pods."""
        self.num_done = 0
        self.failures: list[str] = []
        self._endpoints, self._key = endpoints, key
        self._body = json.dumps({**body, "stream": True})
        self._turn = itertools.count()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=enter, args=(self._ask_on,), daemon=True)
            for _ in range(num_clients)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _ask_on(self) -> None:
        while not self._ending.is_set():
            endpoints = self._endpoints()
            if not endpoints:
                self.failures.append("the Service leads nowhere")
                return
            address = endpoints[next(self._turn) % len(endpoints)]
            try:
                problem = self._ask(address)
            except (OSError, http.client.HTTPException) as error:
                problem = repr(error)
            if problem:
                self.failures.append(f"{address}: {problem}")
            self.num_done += 1

    def _ask(self, address: str) -> str:
        """What is wrong with one answer; empty when nothing is."""
        status, text = post(address, self._body, self._key)
        if status != http.HTTPStatus.OK:
            return f"{status}: {text[:300]}"
        events = [line.removeprefix("data: ") for line in text.split("\n") if line]
        if events[-1:] != ["[DONE]"]:
            return f"a stream that broke: {events[-2:]}"
        reasons = [json.loads(event)["choices"][0]["finish_reason"] for event in events[:-1]]
        return "" if reasons[-1] in ("length", "stop") else f"finish_reason={reasons[-1]}"


def post(address: str, body: str, key: str) -> tuple[int, str]:
    """Status and whole body of one completion request; for a thread that reaches the pods."""
    connection = http.client.HTTPConnection(address, 8000, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, text

"""A prefill worker that takes its time, and floods of requests on real HTTP."""

import asyncio
import json
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bootstrap.identity import Role
from bootstrap.messages import DecodeDispatch, PrefillDispatch
from tests.support.members import LIMITS
from tests.support.scripted_workers import ScriptedWorker

STEP_TOKENS = 16
PACED_LIMITS = msgspec.structs.replace(LIMITS, max_num_batched_tokens=STEP_TOKENS)


class PatientDecode(ScriptedWorker):
    """Answers a room at once when its prompt is computed."""

    def __init__(self, bootstrap: str, token_ids: Sequence[int], **fields: Any) -> None:
        self._waiting: dict[bytes, DecodeDispatch] = {}
        self._computed: set[bytes] = set()
        super().__init__(Role.DECODE, bootstrap, token_ids, limits=PACED_LIMITS, **fields)

    def computed(self, room: bytes) -> None:
        """The prompt is here."""
        with self._lock:
            self._computed.add(room)
            if room in self._waiting:
                super()._answer(self._waiting.pop(room))

    def _answer(self, message: PrefillDispatch | DecodeDispatch) -> None:
        assert isinstance(message, DecodeDispatch)
        self._waiting[message.room] = message
        if message.room in self._computed:
            self.computed(message.room)


class PacedPrefill(ScriptedWorker):
    """Computes one prompt after another for `decode`, `pace_s` each, while `open` is set."""

    def __init__(
        self,
        bootstrap: str,
        token_ids: Sequence[int],
        pace_s: float,
        decode: PatientDecode,
        **fields: Any,
    ) -> None:
        self.pace_s = pace_s
        self._decode_worker = decode
        self.open = threading.Event()
        self.open.set()
        self._prompts: queue.SimpleQueue[PrefillDispatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        super().__init__(Role.PREFILL, bootstrap, token_ids, limits=PACED_LIMITS, **fields)

    def leave(self) -> None:
        """Say goodbye and vanish."""
        self._prompts.put(None)
        self.open.set()
        self._thread.join(60)
        super().leave()

    def _answer(self, message: PrefillDispatch | DecodeDispatch) -> None:
        assert isinstance(message, PrefillDispatch)
        self._prompts.put(message)

    def _run(self) -> None:
        while (message := self._prompts.get()) is not None:
            self.open.wait()
            time.sleep(self.pace_s)
            if message.room not in self.aborts:
                super()._answer(message)
                self._decode_worker.computed(message.room)


@dataclass(frozen=True, slots=True)
class Answered:
    """One call's answer."""

    status: int
    retry_after_s: int | None
    error: dict[str, Any] | None


async def flood(
    url: str, num_calls: int, *, key: str = "none", connections: int = 200, **body: Any
) -> list[Answered]:
    """So many completions, over at most so many connections; plain sockets, to cost next to nothing."""
    host, _, port = url.removeprefix("http://").partition(":")
    request = {"model": "tiny", "prompt": [1, 2, 3, 4], "max_tokens": 2, **body}
    content = json.dumps(request).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    ).encode()
    left = iter(range(num_calls))
    answers: list[Answered] = []

    async def ask_in_turn() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in left:
            writer.write(head + content)
            status, fields, text = await _answer(reader)
            retry = fields.get("retry-after")
            error = None if status == 200 else json.loads(text)["error"]
            answers.append(Answered(status, None if retry is None else int(retry), error))
        writer.close()

    await asyncio.gather(*(ask_in_turn() for _ in range(min(connections, num_calls))))
    return answers


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split()[1]), fields, await reader.readexactly(int(fields["content-length"]))

"""Engines of a real `up` drained, scaled and restarted one by one under load: no request fails.

`python -m tests.faults.test_rolling_restart --rounds N --clients M` repeats the restart and prints how long
each took.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from cluster import runtime
from tests.support.tiny_model import make_tiny_model
from tests.support.up_process import UpProcess
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

NUM_CLIENTS = 4
NUM_PROMPTS = 6
NUM_TOKENS = 60
FLAGS = ("--num-blocks", "512", "--max-model-len", "512", "--dtype", "float64", "--drain-s", "20")


@dataclass
class Load:
    """Clients that ask without a pause; every other request is a stream."""

    url: str
    expected: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    num_answers: int = 0

    def begin(self, num_clients: int) -> None:
        """Note each prompt's solo answer, then start the clients."""
        self._client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="-", max_retries=0)
        self.expected = [self.ask(number, stream=False) for number in range(NUM_PROMPTS)]
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(num_clients)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let every client finish its request."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(120)
        self._client.close()

    def ask(self, number: int, *, stream: bool) -> str:
        answer = self._client.completions.create(
            model="tiny",
            prompt=[10 + number, *range(20, 50)],
            max_tokens=NUM_TOKENS,
            temperature=0.0,
            extra_body={"ignore_eos": True},
            stream=stream,
        )
        if not stream:
            return str(answer.choices[0].text)
        return "".join(chunk.choices[0].text for chunk in answer)

    def _run(self, number: int) -> None:
        while not self._stopping.is_set():
            index, stream = number % NUM_PROMPTS, bool(number % 2)
            number += 1
            try:
                text = self.ask(index, stream=stream)
            except openai.OpenAIError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                continue
            if text != self.expected[index]:
                self.errors.append(f"prompt {index}: {text!r} != {self.expected[index]!r}")
            self.num_answers += 1


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # pytest's own folders have names too long for Ray's sockets.
    path = Path(tempfile.mkdtemp(prefix="pds-", dir="/tmp"))
    monkeypatch.setenv(runtime.ROOT_VARIABLE, str(path / "run"))
    yield path
    shutil.rmtree(path, ignore_errors=True)  # what is just ending may still write there


def wait_engines(up: UpProcess, *names: str) -> None:
    """The supervisor may know before the balancer does."""
    wait_for(lambda: up.incarnations().keys() == set(names), what=f"{names} alone")


def holds_nothing(up: UpProcess) -> bool:
    return all(
        {state for state, n in member["pages"].items() if n} <= {"free", "cached"}
        for member in up.members()
    )


def test_engines_are_restarted_scaled_and_drained_under_load_and_no_request_fails(
    folder: Path,
) -> None:
    model = make_tiny_model(folder / "tiny")
    flags = ["--model", str(model), "--prefill", "2", "--decode", "2", *FLAGS]
    with UpProcess(folder, runtime.free_port("127.0.0.1"), flags) as up:
        up.wait_ready()
        load = Load(up.url)
        load.begin(NUM_CLIENTS)
        try:
            before = up.incarnations()
            restart = up.command("restart")
            assert restart.returncode == 0, restart.stderr
            assert restart.stdout.count("every room finished here") == 4
            assert restart.stdout.count("serves again after") == 4
            old = set(before.values())
            wait_for(lambda: not old & set(up.incarnations().values()), what="new lives")
            wait_engines(up, *before)
            after = up.incarnations()

            scale = up.command("scale", "--decode", "1", "--prefill", "1")
            assert scale.returncode == 0, scale.stderr
            wait_engines(up, "decode-0", "prefill-0")
            assert up.incarnations()["decode-0"] == after["decode-0"]

            restart = up.command("restart", "--role", "decode")  # the only one
            assert restart.returncode == 0, restart.stderr
            wait_engines(up, "decode-1", "prefill-0")

            unknown = up.command("drain", "decode-0")
            assert unknown.returncode == 2
            assert "worker='decode-0': allowed are prefill-0, decode-1" in unknown.stderr
        finally:
            load.end()
        assert load.errors == []
        assert load.num_answers > 20
        drain = up.command("drain", "decode-1", "--timeout", "5")
        assert drain.returncode == 0, drain.stderr
        assert "decode-1: drained in" in drain.stdout
        wait_engines(up, "prefill-0")
        wait_for(lambda: holds_nothing(up), what="all pages back")
        assert up.command("status").returncode == 1  # and it is not brought back


def main() -> None:
    """Restart again and again under load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=NUM_CLIENTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pds-", dir="/tmp") as name:
        folder = Path(name)
        model = make_tiny_model(folder / "tiny")
        flags = ["--model", str(model), "--prefill", "2", "--decode", "2", *FLAGS]
        with UpProcess(folder, runtime.free_port("127.0.0.1"), flags) as up:
            up.wait_ready()
            load = Load(up.url)
            load.begin(options.clients)
            for number in range(options.rounds):
                began_at, before = time.monotonic(), load.num_answers
                restart = up.command("restart")
                took_s = time.monotonic() - began_at
                print(
                    f"round {number}: {took_s:.1f} s, exit code {restart.returncode},"
                    f" {load.num_answers - before} answers, {len(load.errors)} errors so far"
                )
                print(restart.stdout or restart.stderr)
            load.end()
            for error in load.errors:
                print(error)


if __name__ == "__main__":
    main()

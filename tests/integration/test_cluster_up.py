"""`pdserve up` for real: Ray, engines, balancer; its life, its faults and that it leaves nothing."""

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster import runtime
from tests.support.tiny_model import make_tiny_model
from tests.support.up_process import END_TIMEOUT_S, START_TIMEOUT_S, UpProcess
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

BACK_AGAIN_S = 60.0  # a killed worker imports and loads anew; an idle host needs a tenth of this
FLAGS = ("--num-blocks", "128", "--max-model-len", "512")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # pytest's own folders have names too long for Ray's sockets.
    path = Path(tempfile.mkdtemp(prefix="pds-", dir="/tmp"))
    monkeypatch.setenv(runtime.ROOT_VARIABLE, str(path / "run"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def up(folder: Path) -> Iterator[UpProcess]:
    model = make_tiny_model(folder / "tiny")
    port = runtime.free_port("127.0.0.1")
    with UpProcess(folder, port, ["--model", str(model), *FLAGS]) as process:
        yield process


def complete(up: UpProcess) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "hello there", "max_tokens": 8, "temperature": 0}
    response = httpx.post(f"{up.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()["choices"][0]
    return answer


def restarts(up: UpProcess) -> dict[str, int]:
    (record,) = runtime.running()
    return {worker.worker_id: worker.num_restarts for worker in runtime.supervision(record)}


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def assert_nothing_is_left(up: UpProcess, shared_before: set[str]) -> None:
    wait_for(lambda: not up.survivors(), END_TIMEOUT_S, "no process")
    wait_for(lambda: not list(up.runtime_dir.iterdir()), END_TIMEOUT_S, "no file")
    wait_for(lambda: shared_memory() <= shared_before, END_TIMEOUT_S, "no shared memory")
    port = httpx.URL(up.url).port
    assert port is not None
    assert runtime.port_is_free("127.0.0.1", port)


def test_a_cluster_serves_survives_kills_and_ends_without_a_trace(up: UpProcess) -> None:
    shared_before = shared_memory()
    up.wait_ready()
    assert f"curl {up.url}/v1/chat/completions" in up.log
    before = complete(up)

    facts = up.status()
    assert facts["ready"]
    assert facts["num_pairs"] == 1
    assert {member["worker"] for member in facts["members"]} == {"prefill-0", "decode-0"}
    assert up.command("status").stdout.count("ready") >= 3
    doctor = up.command("doctor")
    assert doctor.stdout.endswith("nothing is wrong\n"), doctor.stdout + doctor.stderr
    assert doctor.returncode == 0

    # A killed decode engine comes back as another incarnation; the prefill engine is untouched.
    old = up.incarnations()
    pid = next(m["pid"] for m in facts["members"] if m["worker"] == "decode-0")
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: up.incarnations().get("decode-0", old["decode-0"]) != old["decode-0"],
        BACK_AGAIN_S,
        "a new decode incarnation",
    )
    assert up.incarnations()["prefill-0"] == old["prefill-0"]
    wait_for(up.is_ready, BACK_AGAIN_S, "ready again")
    assert complete(up) == before
    assert restarts(up) == {"bootstrap": 0, "prefill-0": 0, "decode-0": 1, "balancer": 0}
    assert f"decode-0: restarts: 1; last error: process {pid} died" in up.command("status").stdout

    # The bootstrap service comes back at its endpoint and nobody is taken for lost meanwhile.
    members = up.incarnations()
    os.kill(up.pid_of("ray::BootstrapActor"), signal.SIGKILL)
    wait_for(lambda: restarts(up)["bootstrap"] == 1, BACK_AGAIN_S, "a new bootstrap service")
    assert complete(up) == before
    assert up.incarnations() == members

    os.kill(up.pid_of("cluster balancer"), signal.SIGKILL)
    wait_for(lambda: restarts(up).get("balancer") == 1, BACK_AGAIN_S, "a new balancer")
    wait_for(up.is_ready, BACK_AGAIN_S, "ready again")
    assert complete(up) == before
    assert up.incarnations() == members

    up.note_processes()
    down = up.command("down")
    assert down.returncode == 0, down.stderr
    assert "ended" in down.stdout
    assert up.process.wait(END_TIMEOUT_S) == 0
    assert_nothing_is_left(up, shared_before)


def test_ctrl_c_while_starting_ends_everything(up: UpProcess) -> None:
    shared_before = shared_memory()
    wait_for(lambda: "prefill-0" in up.log, START_TIMEOUT_S, "the engines' start")
    up.note_processes()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(END_TIMEOUT_S) == 0
    assert "Traceback" not in up.log
    assert_nothing_is_left(up, shared_before)


def test_a_killed_up_takes_everything_with_it(up: UpProcess) -> None:
    shared_before = shared_memory()
    up.wait_ready()
    up.process.kill()
    up.process.wait()
    assert_nothing_is_left(up, shared_before)


def test_what_cannot_work_is_said_before_anything_starts(folder: Path) -> None:
    model = make_tiny_model(folder / "tiny")
    port = runtime.free_port("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        taken = UpProcess(folder, port, ["--model", str(model)])
        with taken:
            assert taken.process.wait(END_TIMEOUT_S) == 2
        assert taken.log == f"pdserve: port={port}: already in use on 127.0.0.1\n"


def test_a_length_that_nobody_chose_fits_a_model_of_few_positions(folder: Path) -> None:
    model = make_tiny_model(folder / "tiny")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    port = runtime.free_port("127.0.0.1")
    with UpProcess(folder, port, ["--model", str(model), "--num-blocks", "128"]) as up:
        up.wait_ready()
        (card,) = httpx.get(f"{up.url}/v1/models", timeout=60).json()["data"]
        assert card["max_model_len"] == 512
        complete(up)


def test_a_model_that_no_engine_can_load_ends_up_with_its_reason(folder: Path) -> None:
    model = make_tiny_model(folder / "tiny")
    (model / "model.safetensors").write_bytes(b"not a model")
    broken = UpProcess(folder, runtime.free_port("127.0.0.1"), ["--model", str(model), *FLAGS])
    with broken:
        assert broken.process.wait(START_TIMEOUT_S) == 2
    assert "does not start: ConfigError" in broken.log
    assert not list(broken.runtime_dir.iterdir())

"""`pdserve up --no-endpoint`: workers here, load balancers as processes of their own."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from cluster import runtime
from cluster.endpoint import DEFAULT_URL, choose_url
from tests.conftest import ROOT
from tests.support.tiny_model import make_tiny_model
from tests.support.up_process import END_TIMEOUT_S, UpProcess
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # pytest's own folders have names too long for Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="pds-", dir="/tmp") as name:
        monkeypatch.setenv(runtime.ROOT_VARIABLE, f"{name}/run")
        yield Path(name)


def test_a_balancer_of_its_own_serves_over_the_engines_of_an_up_without_one(folder: Path) -> None:
    model = make_tiny_model(folder / "tiny")
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of more than 32 bytes, for all")
    port, http_port = runtime.free_port("127.0.0.1"), runtime.free_port("127.0.0.1")
    flags = ["--no-endpoint", "--bootstrap-port", str(port), "--secret-file", str(secret)]
    sizes = ["--num-blocks", "128", "--max-model-len", "512"]
    with UpProcess(folder, http_port, ["--model", str(model), *flags, *sizes]) as up:
        up.wait_ready()
        assert f"load balancers find it at tcp://127.0.0.1:{port}" in up.log
        assert runtime.port_is_free("127.0.0.1", http_port)
        assert choose_url(None) == DEFAULT_URL  # there is no endpoint to guess
        command = ["balancer", "--bootstrap", f"tcp://127.0.0.1:{port}", "--secret-file"]
        command += [str(secret), "--host", "127.0.0.1", "--port", str(http_port)]
        command += ["--bind-host", "127.0.0.1", "--model-dir", str(model), "--model-name", "tiny"]
        with (folder / "balancer.log").open("wb") as log:
            balancer = subprocess.Popen(
                [sys.executable, "-m", "cluster", *command], cwd=ROOT, stdout=log, stderr=log
            )
        try:
            wait_for(up.is_ready, 120, "a ready balancer")
            client = openai.OpenAI(base_url=f"{up.url}/v1", api_key="-", max_retries=0)
            stream = client.completions.create(
                model="tiny",
                prompt="hello there",
                max_tokens=400,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            assert next(stream).choices[0].text
            # Its balancer cannot know that the engines are about to go: they end what runs.
            down = up.command("down", "--port", str(port))
            assert down.returncode == 0, down.stderr
            assert up.process.wait(END_TIMEOUT_S) == 0
            assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
            metrics = httpx.get(f"{up.url}/metrics", timeout=30).text
            assert "pdserve:request_retries_total{" not in metrics
            wait_for(lambda: not up.members(), what="the engines' goodbyes")
            assert not up.is_ready()
            client.close()
        finally:
            balancer.terminate()
            assert balancer.wait(END_TIMEOUT_S) == 0

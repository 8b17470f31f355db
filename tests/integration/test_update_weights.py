"""New weights for running engines: all take them or none, and no old KV survives."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bootstrap.errors import ConfigError
from engine import reload
from engine.loader import LoadedModel
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

KEY = {"Authorization": "Bearer admin-key"}
PROMPT = list(range(10, 42))  # 8 blocks


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "old": make_tiny_model(folder / "old"),
        "new": make_tiny_model(folder / "new", seed=1),
        "deeper": make_tiny_model(folder / "deeper", num_hidden_layers=4),
    }


@pytest.fixture
def engines(models: dict[str, Path]) -> Iterator[EngineCluster]:
    with EngineCluster(models["old"], num_blocks=512) as cluster:
        yield cluster


@pytest.fixture
def balancer(
    engines: EngineCluster, models: dict[str, Path], tmp_path: Path
) -> Iterator[HttpBalancer]:
    with serving(engines, models["old"], tmp_path) as balancer:
        yield balancer


def serving(engines: EngineCluster, model_dir: Path, tmp_path: Path) -> HttpBalancer:
    keys = tmp_path / "admins"
    keys.write_text("admin-key\n")
    return HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME, admin_key_file=str(keys))


def update(balancer: HttpBalancer, path: Path, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{balancer.url}/admin/update_weights",
        headers=KEY,
        json={"path": str(path), **fields},
        timeout=60,
    )


def complete(balancer: HttpBalancer) -> list[int]:
    """Greedy tokens after PROMPT."""
    body = {
        "model": MODEL_NAME,
        "prompt": PROMPT,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    response = httpx.post(f"{balancer.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


def digests(balancer: HttpBalancer) -> set[str]:
    return {pool["model_digest"] for pool in balancer.get("/server_info").json()["pools"]}


@pytest.fixture(scope="module")
def expected(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[int]]:
    """What engines that began with each model say."""
    found = {}
    for name in ("old", "new"):
        with (
            EngineCluster(models[name], num_blocks=512) as engines,
            serving(engines, models[name], tmp_path_factory.mktemp(name)) as balancer,
        ):
            balancer.wait_ready()
            found[name] = complete(balancer)
    assert found["old"] != found["new"]
    return found


def test_all_engines_change_and_nothing_of_the_old_is_used(
    engines: EngineCluster,
    balancer: HttpBalancer,
    models: dict[str, Path],
    expected: dict[str, list[int]],
) -> None:
    balancer.wait_ready()
    assert complete(balancer) == expected["old"]  # its KV is in both caches now
    old = digests(balancer)
    answer = update(balancer, models["new"])
    assert answer.status_code == 200, answer.text
    assert digests(balancer) == {answer.json()["model_digest"]} != old
    assert complete(balancer) == expected["new"]
    assert update(balancer, models["old"]).status_code == 200
    assert digests(balancer) == old
    assert complete(balancer) == expected["old"]
    balancer.wait_ready()
    engines.wait_idle()


def fails(
    balancer: HttpBalancer, path: Path, said: tuple[str, ...], expected: dict[str, list[int]]
) -> None:
    """The update is refused, and the old weights serve on."""
    before = digests(balancer)
    answer = update(balancer, path)
    assert answer.status_code == 409, answer.text
    error = answer.json()["error"]
    assert error["code"] == "refused_by_engine"
    for text in said:
        assert text in error["message"]
    assert digests(balancer) == before
    assert complete(balancer) == expected["old"]


def test_weights_that_cannot_serve_change_nothing(
    engines: EngineCluster,
    balancer: HttpBalancer,
    models: dict[str, Path],
    expected: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    balancer.wait_ready()
    broken = shutil.copytree(models["new"], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not a model")
    for path, said in (
        (tmp_path / "none", ("p0: ", "d0: ", "No such file")),
        (broken, ("p0: ", "d0: ")),
        (models["deeper"], ("p0: ", "d0: ", "not of the same shape")),
    ):
        fails(balancer, path, said, expected)
    other = shutil.copytree(models["new"], tmp_path / "other")
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    fails(balancer, other, ("the tokenizer is another one",), expected)
    engines.wait_idle()


def test_one_engine_that_fails_keeps_all_on_the_old_weights(
    engines: EngineCluster,
    balancer: HttpBalancer,
    models: dict[str, Path],
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    balancer.wait_ready()
    load, turn = reload.load_model, iter([True, False])

    def once(*arguments: Any) -> LoadedModel:
        if next(turn):
            return load(*arguments)
        raise ConfigError("the disk is on fire")

    monkeypatch.setattr(reload, "load_model", once)
    fails(balancer, models["new"], ("the disk is on fire",), expected)
    monkeypatch.setattr(reload, "load_model", load)
    assert update(balancer, models["new"]).status_code == 200
    assert complete(balancer) == expected["new"]


def test_running_requests_finish_first(
    engines: EngineCluster,
    balancer: HttpBalancer,
    models: dict[str, Path],
    expected: dict[str, list[int]],
) -> None:
    balancer.wait_ready()
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(update(balancer, models["new"])))
    # Of one letter alone: half a character as the first token would be held back.
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}
    body |= {"temperature": 0, "logit_bias": {"50": 100}}
    url = f"{balancer.url}/v1/completions"
    with (
        engines.gate("d0") as gate,  # the stream runs for as long as the test looks
        httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        thread.start()
        wait_for(lambda: balancer.get("/server_info").json()["paused"], what="paused")
        refused = httpx.post(url, json=body, timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "paused")
        assert not answers
        gate.open()
        last = [line for line in lines if line][-1]
    assert last == "data: [DONE]"
    thread.join(60)
    assert answers[0].status_code == 200, answers[0].text
    assert complete(balancer) == expected["new"]

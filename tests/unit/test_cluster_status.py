"""The status command against a scripted balancer."""

import json
from typing import Any

import httpx
import pytest

from bootstrap.errors import RemoteFault
from cluster import runtime
from cluster.runtime import SupervisedWorker
from cluster.status import status

URL = "http://127.0.0.1:8123"


def member(role: str, worker: str) -> dict[str, Any]:
    return {
        "role": role,
        "worker": worker,
        "incarnation": "0123456789abcdef",
        "state": "ready",
        "num_queued": 3,
        "num_running": 2,
        "pages": {"free": 90, "cached": 4, "in_use": 5, "quarantined": 1},
        "transfer": {"backend": "nixl", "transport": "shm"},
    }


def balancer(port: int, *, me: bool) -> dict[str, Any]:
    return {
        "worker": f"balancer-127.0.0.1-{port}",
        "url": f"http://127.0.0.1:{port}",
        "state": "ready",
        "num_queued": 1,
        "num_running": 4,
        "me": me,
    }


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "ready": True,
        "reason": None,
        "model": "tiny",
        "members": [member("decode", "decode-0"), member("prefill", "prefill-0")],
        "balancers": [balancer(8000, me=True)],
        "num_pairs": 1,
        "pairs": [{"prefill": "prefill-0@012345", "decode": "decode-0@012345"}],
        "refusals": [],
        "requests": {"running": 2, "waiting": 0},
        **changes,
    }


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the balancer says; a test may change it."""
    said = facts()

    def get(url: str, timeout: float, headers: dict[str, str]) -> httpx.Response:
        assert url == f"{URL}/status"
        return httpx.Response(200, json=said, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setattr(runtime, "supervision_at", lambda url: ())
    monkeypatch.setenv("COLUMNS", "80")
    return said


def test_every_member_is_a_row_prefill_first(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(URL, as_json=False) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "012345" in line]
    tail = ["012345", "ready", "3", "2", "6/100", "nixl", "shm"]
    assert rows[0] == ["prefill", "prefill-0", *tail]
    assert rows[1] == ["decode", "decode-0", *tail]
    assert rows[2] == ["prefill-0@012345", "->", "decode-0@012345"]


def test_a_pair_that_cannot_serve_says_why(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = {"prefill": "p@1", "decode": "d@2", "differences": ["block_size: 16 != 32"]}
    answer.update(facts(ready=False, reason="nobody agrees", num_pairs=0, refusals=[refusal]))
    assert status(URL, as_json=False) == 1
    out = capsys.readouterr().out
    assert "not ready: nobody agrees" in out
    assert "p@1 -> d@2 cannot:\n    block_size: 16 != 32" in out


def test_a_worker_that_cannot_start_shows_its_last_error(
    answer: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crashing = SupervisedWorker("decode-1", "decode", "waiting", "", None, 4, 3.2, "[OOM] killed")
    monkeypatch.setattr(runtime, "supervision_at", lambda url: (crashing,))
    status(URL, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "decode-1: starts again in 3.2 s; restarts: 4; last error: [OOM] killed" in lines
    assert ["decode", "decode-1", "waiting"] in [line.split() for line in lines]


def test_json_holds_the_same_facts(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(URL, as_json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"url": URL, **answer, "supervision": []}


def test_no_balancer_is_a_remote_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, timeout: float, headers: dict[str, str]) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(httpx, "get", refuse)
    with pytest.raises(RemoteFault, match="connection refused"):
        status(URL, as_json=False)


def test_other_balancers_over_the_same_engines_are_named(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    status(URL, as_json=False)
    assert "balancer-127" not in capsys.readouterr().out
    answer["balancers"] = [balancer(8001, me=False), balancer(8000, me=True)]
    status(URL, as_json=False)
    out = " ".join(capsys.readouterr().out.split())
    one = "balancer-127.0.0.1-8000 at http://127.0.0.1:8000: ready, 4 running, 1 waiting (asked)"
    two = "balancer-127.0.0.1-8001 at http://127.0.0.1:8001: ready, 4 running, 1 waiting"
    assert f"{one} {two}" in out

"""The doctor command against a scripted balancer: what it prints, its exit code, and who may ask."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from bootstrap.errors import RemoteFault
from bootstrap.inspection import Orphan, Wait
from cluster import runtime
from cluster.api.access import Access, Keys
from cluster.api.keys import KeyFile
from cluster.balancer.settings import BalancerSettings
from cluster.cli import run
from cluster.doctor import doctor
from tests.support.snapshots import (
    D_REF,
    D,
    P,
    a_request,
    a_room,
    held,
    ledger,
    readings,
    silent,
    snapshot_of,
)

URL = "http://127.0.0.1:8123"
SOUND = snapshot_of(readings(ledger(P), ledger(D)))


class Balancer:
    """Answers by path; a test sets what."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"/debug/ledger": (200, SOUND)}

    def get(self, url: str, timeout: float, headers: dict[str, str]) -> httpx.Response:
        request = httpx.Request("GET", url)
        status, body = self.answers[request.url.raw_path.decode()]
        return httpx.Response(status, json=body, request=request)


@pytest.fixture
def balancer(monkeypatch: pytest.MonkeyPatch) -> Balancer:
    made = Balancer()
    monkeypatch.setattr(httpx, "get", made.get)
    monkeypatch.setattr(runtime, "supervision_at", lambda url: [])
    monkeypatch.setenv("COLUMNS", "200")
    return made


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_sound_cluster_is_told_by_its_pools(
    balancer: Balancer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(None, URL, as_json=False) == 0
    lines = printed(capsys)
    assert lines[-1] == "nothing is wrong"
    rows = [line.split() for line in lines if "@000000" in line]
    assert rows[0][:5] == ["p@000000", "ready", "memfd", "0", "64"]
    assert rows[0][-2:] == ["64", "ok"]
    assert [row[0] for row in rows] == ["p@000000", "d@000000"]
    (header,) = [line.split() for line in lines if line.startswith("engine ")]
    assert header == ["engine", "state", "transport", "rooms", "free", "sum"], "no empty states"


def test_what_is_wrong_is_one_line_each_and_the_exit_code(
    balancer: Balancer, capsys: pytest.CaptureFixture[str]
) -> None:
    orphans = (Orphan(a_room(5), {"in_use": 3}),)
    prefill = ledger(P, held(1, "sending", peer=D_REF, waits_for=Wait.MANIFEST), orphans=orphans)
    snapshot = snapshot_of(readings(prefill, silent(D), requests=(a_request(1),)))
    balancer.answers["/debug/ledger"] = 200, snapshot
    assert doctor(None, URL, as_json=False) == 1
    lines = printed(capsys)
    assert lines[-1] == "3 things are wrong"
    wrong = [line for line in lines if line.startswith("WRONG: ")]
    assert any("d does not answer" in line for line in wrong)
    assert any("p holds 3 pages of no room (00000005)" in line for line in wrong)
    assert all("It matters because" in line and "Next: " in line for line in wrong)
    (header,) = [line.split() for line in lines if line.startswith("engine ")]
    assert header[-3:] == ["in_use", "sum", "orphans"]
    assert any(line.split()[:2] == ["d@000000", "no"] for line in lines)
    assert any(line.split()[:5] == ["20.0", "s", "p", "00000001", "r1"] for line in lines)


def test_notes_alone_leave_the_exit_code(
    balancer: Balancer, capsys: pytest.CaptureFixture[str]
) -> None:
    balancer.answers["/debug/ledger"] = 200, {**SOUND, "wire": {"dropped": 2}}
    assert doctor(None, URL, as_json=False) == 0
    lines = printed(capsys)
    assert lines[-1] == "nothing is wrong"
    assert lines[-2].startswith("note: dropped since the start: lb@ffffff 2.")


def test_json_holds_the_findings_and_all_facts(
    balancer: Balancer, capsys: pytest.CaptureFixture[str]
) -> None:
    balancer.answers["/debug/ledger"] = 200, {**SOUND, "ready": False, "reason": "nobody"}
    assert doctor(None, URL, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is False
    assert [finding["kind"] for finding in said["findings"]] == ["not_ready"]
    assert said["snapshot"]["engines"] == json.loads(json.dumps(SOUND["engines"]))
    assert (said["url"], said["supervision"]) == (URL, [])


def test_a_supervisors_view_is_part_of_it(
    balancer: Balancer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = {"worker_id": "d9", "state": "waiting", "num_restarts": 4, "last_error": "[OOM]"}
    monkeypatch.setattr(runtime, "supervision_at", lambda url: [worker])
    assert doctor(None, URL, as_json=False) == 1
    assert any("d9 is waiting after 4 restarts: [OOM]" in line for line in printed(capsys))


def test_one_request_is_told_with_its_verdict(
    balancer: Balancer, capsys: pytest.CaptureFixture[str]
) -> None:
    room = {"state": "queued", "pages": {"in_use": 2}, "epoch": 4}
    leg = {"role": "decode", "worker": "d@000000", "room": room, "page_indices": [3, 4]}
    request = {
        "id": "cmpl-1",
        "request_id": "job/7 a",
        "delivered_tokens": 2,
        "max_tokens": 8,
        "steps": [{"at_s": 0.25, "what": "first token"}],
        "legs": [leg, {"role": "prefill", "worker": "p@000000", "room": None, "page_indices": []}],
        "verdict": "d: waits",
    }
    balancer.answers["/debug/requests/job/7%20a"] = 200, {"requests": [request]}
    assert run(["doctor", "job/7 a", "--url", URL]) == 0
    assert printed(capsys) == [
        "job/7 a (cmpl-1): 2 of at most 8 tokens delivered",
        "      0.250 s  first token",
        "  decode leg on d@000000: queued, 2 pages (2 in_use), epoch 4",
        "  d: waits",
    ]
    assert run(["doctor", "job/7 a", "--url", URL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == [request]


def test_a_refusal_is_told_in_the_servers_words(
    balancer: Balancer, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"error": {"message": "No request 'x' runs here."}}
    balancer.answers["/debug/requests/x"] = 404, error
    assert run(["doctor", "x", "--url", URL]) == 1
    assert "404: No request 'x' runs here." in capsys.readouterr().err


def test_no_balancer_is_a_remote_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, timeout: float, headers: dict[str, str]) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(httpx, "get", refuse)
    with pytest.raises(RemoteFault, match="connection refused"):
        doctor(None, URL, as_json=False)


# --- who may ask -----------------------------------------------------------------------------

LEDGER = "/debug/ledger"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, KeyFile]:
    for name in ("client", "admin"):
        (tmp_path / name).write_text(f"{name}-key\n")
    return {name: KeyFile(name, str(tmp_path / name)) for name in ("client", "admin")}


def status_of(keys: Keys, given: str | None) -> int:
    refusal = keys.refusal(LEDGER, given)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_without_keys_only_this_machine_may_look(host: str, local: bool) -> None:
    settings = BalancerSettings(
        host=host, port=0, bootstrap="tcp://127.0.0.1:1", model_dir="m", model_name="m"
    )
    keys = Keys.of(settings)
    assert status_of(keys, None) == (200 if local else 403)
    if not local:
        assert "--admin-key-file" in str(keys.refusal(LEDGER, None))


@pytest.mark.parametrize("local", [True, False])
def test_with_administrators_only_they_may_look(files: dict[str, KeyFile], local: bool) -> None:
    keys = Keys(files["client"], files["admin"], local)
    assert status_of(keys, None) == 401
    assert status_of(keys, "client-key") == 403
    assert status_of(keys, "wrong-key") == 401
    assert status_of(keys, "admin-key") == 200


def test_with_clients_alone_a_client_of_this_machine_may_look(files: dict[str, KeyFile]) -> None:
    assert status_of(Keys(files["client"], None, local=True), None) == 401
    assert status_of(Keys(files["client"], None, local=True), "client-key") == 200
    assert status_of(Keys(files["client"], None, local=False), "client-key") == 403


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": "localhost"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"host": "pages.example:8000"}, False),  # a name that was made to point here
        ({}, False),
        ({"host": "127.0.0.1:8000", "x-forwarded-for": "198.51.100.7"}, False),
        ({"host": "127.0.0.1:8000", "forwarded": "for=198.51.100.7"}, False),
    ],
)
def test_what_comes_by_loopback_need_not_be_from_this_machine(
    headers: dict[str, str], allowed: bool
) -> None:
    async def handler(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    statuses = []

    async def send(message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "path": LEDGER,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Access(handler, Keys(local=True))(scope, None, send))
    assert statuses == [200 if allowed else 403]

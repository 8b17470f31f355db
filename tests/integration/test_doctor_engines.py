"""The ledger and the doctor over real engines: held steps, held pages, quarantine, stopped processes."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bootstrap.identity import WorkerRef
from bootstrap.inspection import AskLedger
from cluster.balancer import inspection, probe
from cluster.doctor import doctor, fetch
from tests.support.engine_cluster import MODEL_NAME, EngineCluster, Gate
from tests.support.http_balancer import HttpBalancer
from tests.support.process_cluster import ProcessCluster
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for
from tests.support.waiting_client import waiting_client

PROMPT = list(range(10, 42))  # 8 blocks
PATIENT_S = 10.0  # for the answers of engines that are not held


@pytest.fixture(autouse=True)
def no_probes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for readiness and no more: a later one would be the first to be held in a step."""
    monkeypatch.setattr(probe, "READY_INTERVAL_S", 600.0)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model_dir: Path) -> Iterator[EngineCluster]:
    with EngineCluster(model_dir) as cluster:
        yield cluster


@pytest.fixture
def balancer(engines: EngineCluster, model_dir: Path) -> Iterator[HttpBalancer]:
    with HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME) as balancer:
        balancer.wait_ready()
        yield balancer


@contextmanager
def asking(balancer: HttpBalancer, gate: Gate, name: str, **fields: Any) -> Iterator[None]:
    """A client that waits for its answer until the block ends, which opens the gate."""
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, **fields}
    headers, url = {"X-Request-Id": name}, f"{balancer.url}/v1/completions"
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(url, json=body, headers=headers, timeout=60))

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield
    finally:
        gate.open()
        client.join(60)
    assert answers[0].status_code == 200, answers[0].text


def ledger(balancer: HttpBalancer) -> dict[str, dict[str, Any]]:
    """What each engine says, by name; every pool's sum is checked."""
    facts = fetch(balancer.url, "/debug/ledger")
    for engine in facts["engines"]:
        if engine["answered"]:
            assert sum(engine["pages"].values()) == engine["num_pages"]
            assert engine["num_orphan_pages"] == 0
    return {engine["worker"]: engine for engine in facts["engines"]}


def story(balancer: HttpBalancer, name: str) -> dict[str, Any]:
    (found,) = fetch(balancer.url, f"/debug/requests/{name}")["requests"]
    return dict(found)


def test_an_idle_cluster_is_healthy(
    engines: EngineCluster,
    balancer: HttpBalancer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspection, "DEADLINE_S", PATIENT_S)
    engines.wait_idle()
    assert doctor(None, balancer.url, as_json=True) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [finding for finding in facts["findings"] if not finding["note"]] == []
    assert facts["snapshot"]["problems"] == []
    assert {engine["worker"] for engine in facts["snapshot"]["engines"]} == {"p0", "d0"}
    assert 'pdserve:orphan_pages{role="decode",worker="d0"} 0.0' in balancer.get("/metrics").text


def test_a_held_decode_step_shows_in_the_story_and_then_its_end(
    engines: EngineCluster, balancer: HttpBalancer
) -> None:
    with engines.gate("d0") as gate, asking(balancer, gate, "held/1"):
        gate.wait_entered()
        told = wait_for(
            lambda: (s := story(balancer, "held/1"))["delivered_tokens"] == 1 and s,
            what="the bootstrap token",
        )
        assert told["now"]["state"] == "handing off"
        assert "d0@" in told["verdict"]
        assert "does not answer: no answer within 2 s" in told["verdict"]
        engine = ledger(balancer)["d0"]
        assert (engine["answered"], engine["problem"]) == (False, "no answer within 2 s")
    ended = story(balancer, "held/1")
    assert ended["outcome"] == "length"
    assert ended["verdict"].startswith("ended ")
    assert [step["what"] for step in ended["steps"]][-1] == "last token: length"


def test_a_prompt_that_decode_has_no_pages_for_waits_for_its_manifest(model_dir: Path) -> None:
    with (
        EngineCluster(model_dir, decode={"num_blocks": 12}) as engines,
        HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):
        balancer.wait_ready()
        engines.wait_idle()
        with engines.gate("d0") as gate, asking(balancer, gate, "a"):
            gate.wait_entered()
            with asking(balancer, gate, "b", prompt=PROMPT[::-1]):
                # Before, it computes; and the room of "a" may still wait for its last word.
                (room,) = wait_for(
                    lambda: [
                        room
                        for room in ledger(balancer)["p0"]["rooms"]
                        if (room["request_id"], room["state"]) == ("b", "sending")
                    ],
                    what="the room",
                )
                assert room["waits_for"] == "manifest"
                assert room["detail"].startswith("waits for the manifest of d0@")
                assert room["pages"] == {"leased": 8}


def test_an_engine_reports_pages_under_a_write_and_in_quarantine(
    engines: EngineCluster, balancer: HttpBalancer
) -> None:
    """Prefill is held in a step, so it cannot say that it stopped when its client leaves."""
    engines.wait_idle()
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 6, "stream": True}
    with engines.gate("p0") as gate:
        with waiting_client(balancer, "/v1/completions", body):
            gate.wait_entered()
            receiving = wait_for(
                lambda: [r for r in ledger(balancer)["d0"]["rooms"] if r["state"] == "receiving"],
                what="pages under a write",
            )
            assert receiving[0]["pages"] == {"writing": 8}
            assert receiving[0]["waits_for"] == "record"
        (room,) = wait_for(
            lambda: [r for r in ledger(balancer)["d0"]["rooms"] if r["state"] == "quarantined"],
            what="a quarantine",
        )
        assert room["pages"] == {"quarantined": 8}
        assert room["claim"] == "this balancer, which ended it"
        assert "to say that it stopped, asked " in room["detail"]
        assert fetch(balancer.url, "/debug/ledger")["problems"] == []
    engines.wait_idle()
    assert ledger(balancer)["d0"]["rooms"] == []


def test_an_orphan_is_found_by_engine_metric_and_doctor(
    engines: EngineCluster,
    balancer: HttpBalancer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspection, "DEADLINE_S", PATIENT_S)
    engines.wait_idle()
    ledger_of_p0 = engines.prefill_core().ledger
    assert ledger_of_p0.take(b"\xab" * 16, [], 3) is not None
    wait_for(
        lambda: 'orphan_pages{role="prefill",worker="p0"} 3.0' in balancer.get("/metrics").text,
        what="the gauge",
    )
    assert doctor(None, balancer.url, as_json=False) == 1
    assert "WRONG: p0 holds 3 pages of no room (abababab)." in capsys.readouterr().out
    ledger_of_p0.release(b"\xab" * 16)
    wait_for(
        lambda: 'orphan_pages{role="prefill",worker="p0"} 0.0' in balancer.get("/metrics").text,
        what="the gauge to fall",
    )


def test_a_question_for_another_life_is_not_answered(engines: EngineCluster) -> None:
    before = engines.engines["p0"].load().counters["wire_misaddressed"]
    peer = engines.engines["p0"].peer
    stranger = type(peer)(WorkerRef("p0", "0" * 16), peer.endpoint)
    engines.engines["d0"]._mailbox.post(stranger, AskLedger(bytes(16)))
    wait_for(
        lambda: engines.engines["p0"].load().counters["wire_misaddressed"] > before,
        what="a dropped message",
    )


def test_a_stopped_process_is_listed_within_the_deadline(
    model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ProcessCluster(model_dir, tmp_path, transfer="fake") as cluster:
        url = cluster.balancer.url
        with monkeypatch.context() as patch:
            patch.setattr(inspection, "DEADLINE_S", PATIENT_S)
            assert doctor(None, url, as_json=True) == 0, capsys.readouterr().out
        capsys.readouterr()
        process = cluster._processes["d0"]
        process.send_signal(signal.SIGSTOP)

        def told() -> tuple[dict[str, Any], dict[str, bool]] | None:
            """What it says while the engine is stopped; None where the sound one was late too."""
            assert doctor(None, url, as_json=True) == 1
            facts = json.loads(capsys.readouterr().out)
            answered = {e["worker"]: e["answered"] for e in facts["snapshot"]["engines"]}
            return (facts, answered) if answered["p0"] else None

        try:
            # That it says anything is the proof: the engine does not come back before.
            facts, answered = wait_for(told, 60.0, "the word of p0")
            kinds = {finding["kind"] for finding in facts["findings"]}
            assert kinds & {"no_answer", "departure"}
            assert not answered.get("d0", False)
        finally:
            process.send_signal(signal.SIGCONT)

"""More than the workers can do, over real HTTP: who is turned away, who is served, and what is left."""

import asyncio
import gc
import http.client
import json
import re
import select
import socket
import threading
from pathlib import Path

import openai
import pytest

from cluster.balancer import probe, serve
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, complete
from tests.support.paced_workers import PacedPrefill, PatientDecode, flood
from tests.support.waiting import wait_for

tokenizer = balancer_cluster.tokenizer
ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster


def paced(make_cluster, ids, pace_s=0.005, **settings):
    """A pair whose prefill worker takes its time, ready to serve."""
    cluster = make_cluster(**settings)
    endpoint, contract = cluster.service.endpoint, cluster.contract
    cluster.d = PatientDecode(endpoint, ids, worker_id="d1", contract=contract)
    cluster.p = PacedPrefill(endpoint, ids, pace_s, cluster.d, worker_id="p1", contract=contract)
    cluster.workers += [cluster.p, cluster.d]
    cluster.wait_ready()
    return cluster


def nothing_is_left(cluster) -> bool:
    status = cluster.get("/status").json()
    outstanding = sum(m["outstanding_tokens"] for m in status["members"])
    return outstanding == 0 and _num_waiting(cluster) == 0


def test_beyond_the_bound_it_is_429_and_after_it_all_is_well(make_cluster, ids):
    cluster = paced(make_cluster, ids, max_waiting_requests=20)
    cluster.p.open.clear()
    answers: list = []
    calls = threading.Thread(
        target=lambda: answers.extend(asyncio.run(flood(cluster.url, 150))), daemon=True
    )
    calls.start()
    # All of them: one that came after the worker goes on would find a place that became free.
    wait_for(lambda: _num_refused(cluster) + _num_unanswered(cluster) >= 150, 60.0, "the flood")
    with pytest.raises(openai.RateLimitError) as caught:
        complete(cluster)
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.type == "rate_limit_error"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    with pytest.raises(openai.RateLimitError):
        complete(cluster, stream=True)
    cluster.p.open.set()
    calls.join(60)
    statuses = [answer.status for answer in answers]
    assert set(statuses) == {200, 429}
    assert 20 <= statuses.count(200) <= 40, "20 wait, and some are with the workers"
    for answer in answers:
        assert (answer.retry_after_s is None) == (answer.status == 200)
    assert complete(cluster).choices[0].text
    wait_for(lambda: nothing_is_left(cluster))


def test_what_a_refusal_says_is_openais_error(make_cluster, ids):
    cluster = paced(make_cluster, ids, max_waiting_requests=1)
    cluster.p.open.clear()
    answers = asyncio.run(_until_refused(cluster))
    cluster.p.open.set()
    (error,) = {json.dumps(a.error, sort_keys=True) for a in answers if a.status == 429}
    assert json.loads(error) == {
        "message": "Too many requests wait already.",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }


async def _until_refused(cluster):
    calls = asyncio.ensure_future(flood(cluster.url, 60))
    await _until(lambda: 'outcome="overloaded"' in cluster.get("/metrics").text)
    cluster.p.open.set()
    return await calls


def test_a_keys_flood_does_not_delay_anothers_first_request(
    make_cluster, ids, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(probe, "READY_INTERVAL_S", 600.0)  # none is among those that wait
    keys = tmp_path / "keys"
    keys.write_text("flood\nlight\n")
    cluster = paced(make_cluster, ids, api_key_file=str(keys))
    cluster.http.headers["Authorization"] = "Bearer light"
    cluster.p.open.clear()

    async def both():
        many = asyncio.ensure_future(flood(cluster.url, 200, key="flood"))
        await _until(lambda: _num_unanswered(cluster) >= 200)
        one = asyncio.ensure_future(flood(cluster.url, 1, key="light", prompt=[5]))
        await _until(lambda: _num_unanswered(cluster) >= 201)
        before = len(cluster.p.dispatches)  # two steps' prompts
        cluster.p.open.set()
        return before, [*await many, *await one]

    before, answers = asyncio.run(both())
    assert all(answer.status == 200 for answer in answers)
    turn = [dispatch.prompt_token_ids for dispatch in cluster.p.dispatches].index((5,))
    assert turn - before < 60, "of 200 that came before it"


async def _until(condition, timeout_s=60.0):
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while not await loop.run_in_executor(None, condition):
        assert loop.time() < until, "not in time"
        await asyncio.sleep(0.02)


def _num_waiting(cluster) -> float:
    found = re.search(r"^\S*num_requests_waiting\S* ([0-9.]+)$", cluster.get("/metrics").text, re.M)
    assert found is not None
    return float(found[1])


def _num_refused(cluster) -> float:
    found = re.search(r'^\S*{outcome="overloaded"} ([0-9.]+)$', cluster.get("/metrics").text, re.M)
    return float(found[1]) if found else 0.0


def _num_unanswered(cluster) -> int:
    return cluster.get("/status").json()["requests"]["running"]


def test_a_flood_of_2000_leaves_memory_as_it_was_and_honest_clients_are_served(make_cluster, ids):
    cluster = paced(make_cluster, ids, pace_s=0.001, max_waiting_requests=50)
    asyncio.run(flood(cluster.url, 500))
    gc.collect()
    before = _rss_bytes()

    async def both():
        many = asyncio.ensure_future(flood(cluster.url, 2000))
        served = 0
        while not many.done():
            (honest,) = await flood(cluster.url, 1)
            served += honest.status == 200
            await asyncio.sleep(0.02)
        return await many, served

    answers, served = asyncio.run(both())
    statuses = {answer.status for answer in answers}
    assert statuses <= {200, 429}
    assert served > 0
    wait_for(lambda: nothing_is_left(cluster))
    gc.collect()
    assert _rss_bytes() - before < 32 << 20
    assert complete(cluster).choices[0].text


def _rss_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split("VmRSS:")[1].split()[0])


def test_bodies_are_bounded_together(make_cluster, ids):
    cluster = paced(make_cluster, ids, max_request_bytes=1 << 16)
    port = int(cluster.url.rpartition(":")[2])
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {1 << 16}\r\n\r\n"
    ).encode()
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
    for half in held:
        half.sendall(head + b" " * ((1 << 16) - 1))
        half.setblocking(False)
    answers = wait_for(lambda: [_read(half) for half in held if _has_answer(half)])
    assert all(answer.status == 429 for answer in answers)
    assert b'"rate_limit_exceeded"' in answers[0].read()
    assert answers[0].headers["retry-after"]
    for half in held:
        half.close()
    body = {"model": MODEL, "prompt": "x" * 100}
    wait_for(lambda: cluster.http.post("/v1/completions", json=body).status_code == 200)


def _has_answer(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def _read(connection: socket.socket) -> http.client.HTTPResponse:
    """The answer that has begun to come."""
    connection.settimeout(20)
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response


def test_a_reader_that_takes_nothing_is_cut_off_and_holds_up_nobody(make_cluster, ids, monkeypatch):
    monkeypatch.setattr(serve, "STALLED_READER_S", 3.0)

    def listen(host, port):
        listener = serve.listen(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
        return listener

    monkeypatch.setattr(balancer_cluster, "listen", listen)
    cluster = make_cluster()
    pair = cluster.pair()
    cluster.wait_ready()
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    stalled.connect(("127.0.0.1", int(cluster.url.rpartition(":")[2])))
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": "x",
            "stream": True,
            "n": 64,
            "max_tokens": 200,
            "ignore_eos": True,
        }
    ).encode()
    stalled.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    wait_for(lambda: len(pair.d.dispatches) > 60)
    assert complete(cluster).choices[0].text, "others are served meanwhile"
    port = stalled.getsockname()[1]
    connections = cluster.server.server_state.connections
    wait_for(lambda: port not in {c.client[1] for c in list(connections) if c.client})
    stalled.close()
    wait_for(lambda: nothing_is_left(cluster))

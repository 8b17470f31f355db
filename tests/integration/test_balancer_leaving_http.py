"""A load balancer that is asked to stop while clients stream and others still come."""

import threading

import httpx
import pytest

from bootstrap.membership import BalancerMember, WorkerState
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, TEXT, started_stream
from tests.support.waiting import wait_for

ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster
tokenizer = balancer_cluster.tokenizer

BODY = {"model": MODEL, "prompt": "x", "max_tokens": 200}


def leaving(make_cluster, **settings):
    """A ready cluster with a stream in the middle that is then asked to stop."""
    cluster = make_cluster(**settings)
    vars(cluster).update(vars(cluster.pair()))
    cluster.wait_ready()
    cluster.d.limit = 6
    stream, text = started_stream(cluster)
    wait_for(lambda: cluster.d._held, what="a held stream")
    cluster.server.should_exit = True
    wait_for(lambda: cluster.get("/ready").status_code == 503, what="unreadiness")
    return cluster, stream, text


def finish(cluster, stream, text):
    cluster.d.limit = 1 << 20
    cluster.d.release()
    text += "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    cluster.thread.join(40)
    assert not cluster.thread.is_alive()
    return text


def test_it_serves_on_unready_for_the_delay_and_sends_clients_elsewhere(make_cluster):
    cluster, stream, text = leaving(make_cluster, drain_delay_s=8.0, shutdown_grace_s=20.0)
    cluster.d.limit = 1 << 20
    answer = cluster.http.post("/v1/completions", json=BODY)
    assert answer.json()["choices"][0]["text"] == TEXT
    assert answer.headers["Connection"] == "close"
    assert cluster.get("/health").status_code == 200
    assert finish(cluster, stream, text) == TEXT


def test_it_refuses_new_requests_while_streams_end(make_cluster):
    cluster, stream, text = leaving(make_cluster, shutdown_grace_s=20.0)
    answer = cluster.http.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert answer.headers["Connection"] == "close"
    assert "stops" in answer.json()["error"]["message"]
    assert finish(cluster, stream, text) == TEXT
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{cluster.url}/health")


def test_the_cluster_hears_that_it_leaves_and_then_its_goodbye(make_cluster):
    cluster, stream, text = leaving(make_cluster, shutdown_grace_s=20.0)

    def states():
        members = cluster.service._registry.members
        return [m.load.state for m in members if isinstance(m, BalancerMember)]

    wait_for(lambda: states() == [WorkerState.DRAINING], what="a draining balancer")
    finish(cluster, stream, text)
    wait_for(lambda: states() == [], what="its goodbye")


def test_a_second_signal_ends_it_at_once(make_cluster):
    cluster, stream, _ = leaving(make_cluster, drain_delay_s=60.0, shutdown_grace_s=60.0)
    errors = []

    def read():
        try:
            list(stream)
        except Exception as error:  # noqa: BLE001 - whatever a cut stream raises
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    cluster.server.handle_exit(15, None)
    cluster.thread.join(40)
    assert not cluster.thread.is_alive()
    reader.join(40)
    assert errors

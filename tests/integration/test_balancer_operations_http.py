"""`/ready`, `/status`, `/metrics`, and the balancer as a process."""

import json
import signal
import subprocess
import sys

import httpx
import msgspec
import openai
import pytest

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from bootstrap.messages import FailureReason
from cluster import runtime
from cluster.balancer.serve import listen
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, complete
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

cluster = balancer_cluster.cluster
ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster
tokenizer = balancer_cluster.tokenizer


def test_ready_follows_the_workers(make_cluster):
    cluster = make_cluster()
    body = cluster.http.get("/ready").json()
    assert sorted(body["missing_roles"]) == ["decode", "prefill"]
    p = cluster.add(Role.PREFILL)
    wait_for(lambda: cluster.http.get("/ready").json()["missing_roles"] == ["decode"])
    d = cluster.add(Role.DECODE)
    cluster.wait_ready()
    probe = wait_for(lambda: [x for x in d.dispatches if x.request_id.startswith("probe")])[0]
    assert (probe.sampling.max_tokens, probe.sampling.stop_token_ids) == (2, ())
    p.leave()
    wait_for(lambda: cluster.http.get("/ready").status_code == 503)
    assert cluster.http.get("/ready").json()["missing_roles"] == ["prefill"]
    assert cluster.http.get("/health").status_code == 200


def test_workers_that_are_registered_and_do_not_answer_are_not_ready(make_cluster):
    cluster = make_cluster()
    p = cluster.add(Role.PREFILL)
    p.refuse = FailureReason.TRANSFER_FAILED  # before there is a pair to probe
    d = cluster.add(Role.DECODE)
    d.refuse = FailureReason.TRANSFER_FAILED
    reason = wait_for(
        lambda: (r := cluster.http.get("/ready").json()["reason"]).startswith("the last") and r
    )
    assert "transfer_failed" in reason
    d.refuse = p.refuse = None
    cluster.wait_ready()


def test_a_contract_mismatch_is_named(make_cluster):
    cluster = make_cluster()
    cluster.add(Role.PREFILL)
    cluster.add(Role.DECODE, contract=msgspec.structs.replace(cluster.contract, dtype="bfloat16"))
    body = wait_for(lambda: (b := cluster.http.get("/ready").json())["refusals"] and b)
    assert "dtype" in body["reason"]
    assert body["refusals"][0]["differences"] == ["dtype: 'float32' != 'bfloat16'"]
    status = cluster.http.get("/status").json()
    assert status["refusals"] == body["refusals"]
    assert (status["ready"], status["pairs"]) == (False, [])
    with pytest.raises(openai.InternalServerError) as caught:
        complete(cluster)
    assert caught.value.status_code == 503


def test_status_tells_of_each_worker(cluster):
    status = cluster.http.get("/status").json()
    member = next(m for m in status["members"] if m["role"] == "decode")
    assert member["worker"] == "d1"
    assert member["incarnation"] == cluster.d.ref.incarnation
    assert member["state"] == "ready"
    assert member["pages"] == {"free": 64}
    assert member["transfer"] == {"backend": "fake", "transport": "memfd"}
    assert member["endpoint"] == cluster.d.mailbox.peer.endpoint
    assert status["pairs"] == [{"prefill": str(cluster.p.ref), "decode": str(cluster.d.ref)}]


def test_metrics_count_what_clients_asked(cluster, ids):
    complete(cluster)
    with pytest.raises(openai.BadRequestError):
        complete(cluster, max_tokens=10_000)
    text = cluster.http.get("/metrics").text
    assert 'pdserve:requests_total{outcome="stop"} 1.0' in text
    model = f'{{model_name="{MODEL}"}}'
    assert f"vllm:generation_tokens_total{model} {float(len(ids))}" in text
    assert f"vllm:time_to_first_token_seconds_count{model} 1.0" in text
    assert f"vllm:e2e_request_latency_seconds_count{model} 1.0" in text
    assert f"vllm:request_generation_tokens_sum{model} {float(len(ids))}" in text
    assert f'vllm:request_success_total{{finished_reason="stop",{model[1:]} 1.0' in text
    assert 'pdserve:pair_requests_total{decode="d1",prefill="p1"} 1.0' in text
    assert 'pdserve:kv_pages{role="decode",state="free",worker="d1"} 64.0' in text
    assert f'vllm:kv_cache_usage_perc{model[:-1]},role="prefill",worker="p1"}} 0.0' in text
    assert 'pdserve:messages_total{kind="received"}' in text
    assert 'pdserve:dropped_messages_total{kind="room"} 0.0' in text


def test_another_tokenizer_than_ours_is_named(make_cluster):
    cluster = make_cluster()
    odd = msgspec.structs.replace(cluster.contract, tokenizer_digest="other")
    cluster.add(Role.PREFILL, contract=odd)
    cluster.add(Role.DECODE, contract=odd)
    body = wait_for(lambda: (b := cluster.http.get("/ready").json())["refusals"] and b)
    assert "tokenizer_digest" in body["reason"]


PROCESS = """
import json, sys
from cluster.balancer.serve import run_balancer
from cluster.balancer.settings import BalancerSettings
run_balancer(BalancerSettings(**json.loads(sys.argv[1])))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_serves_and_a_signal_ends_it_cleanly(cluster, tmp_path, number):
    port = runtime.free_port("127.0.0.1")
    settings = {
        "host": "127.0.0.1",
        "port": port,
        "bootstrap": cluster.service.endpoint,
        "model_dir": str(make_tiny_model(tmp_path / "model")),
        "model_name": "tiny",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, json.dumps(settings)], stderr=subprocess.PIPE, text=True
    )
    try:

        def is_ready() -> bool:
            assert process.poll() is None
            try:
                return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(is_ready, 60, "readiness")
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()


def test_a_port_that_is_taken_is_a_config_error(cluster):
    port = int(cluster.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port={port}"):
        listen("127.0.0.1", port)

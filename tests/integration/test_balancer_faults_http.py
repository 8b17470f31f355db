"""Workers that fail, clients that leave, garbage and stops: what clients see, and who is told."""

import json
import threading

import openai
import pytest
import zmq

from bootstrap.identity import new_room
from bootstrap.messages import FailureReason, LegFailed, RoomTokens, TokenBatch
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, TEXT, complete, started_stream
from tests.support.waiting import wait_for
from tests.support.waiting_client import wait_for_requests, waiting_client

cluster = balancer_cluster.cluster
ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster
tokenizer = balancer_cluster.tokenizer


def test_a_lost_decode_worker_costs_the_stream_nothing(cluster, ids):
    cluster.d.limit = 6
    stream, text = started_stream(cluster)
    second = cluster.pair(2)
    cluster.wait_members(4)
    delivered = f'vllm:generation_tokens_total{{model_name="{MODEL}"}} 6.0'
    wait_for(lambda: delivered in cluster.http.get("/metrics").text, what="six tokens")
    cluster.d.leave()
    text += "".join(c.choices[0].delta.content or "" for c in stream)
    assert text == TEXT
    dispatches = [d for p in (cluster.p, second.p) for d in p.of("faulty")]
    assert [d.attempt for d in dispatches] == [1, 2]
    assert dispatches[1].output_offset == 6
    assert dispatches[1].prompt_token_ids == dispatches[0].prompt_token_ids + ids[:6]
    assert dispatches[1].sampling == dispatches[0].sampling
    assert second.d.of("faulty")[0].output_offset == 6
    first_room = dispatches[0].room
    wait_for(lambda: cluster.p.aborts.get(first_room) is FailureReason.PEER_LOST)


def test_a_refused_attempt_goes_to_another_pair(cluster):
    cluster.d.refuse = FailureReason.DRAINING
    second = cluster.pair(2)
    cluster.wait_members(4)
    answer = cluster.http.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": "x", "max_tokens": 200},
        headers={"X-Request-Id": "retry"},
    )
    assert answer.json()["choices"][0]["text"] == TEXT
    assert second.d.of("retry")


def test_no_pair_left_mid_stream_is_one_error_event_and_no_done(cluster):
    cluster.d.limit = 6
    stream, _ = started_stream(cluster)
    cluster.d.leave()
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "no_workers"


def test_a_broken_stream_on_the_wire(cluster):
    cluster.d.limit = 3
    body = {"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 50}
    with cluster.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        cluster.d.leave()
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "no_workers"
    assert 'finish_reason":"' not in "".join(rest)
    assert answer.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_there_is_503_with_retry_after(make_cluster, stream):
    cluster = make_cluster()
    body = {"model": MODEL, "prompt": "x", "stream": stream}
    answer = cluster.http.post("/v1/completions", json=body)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert error["type"] == "service_unavailable_error"
    assert "no ready prefill" in error["message"]


def test_a_worker_that_is_full_is_asked_again_until_the_deadline(make_cluster):
    cluster = make_cluster(request_timeout_s=6.0)
    pair = cluster.pair()
    cluster.wait_ready()
    pair.p.refuse = FailureReason.QUEUE_FULL
    with pytest.raises(openai.InternalServerError) as caught:
        complete(cluster, extra_headers={"X-Request-Id": "waits"})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert len(pair.p.of("waits")) > 2
    wait_for(lambda: pair.d.aborts)
    pair.p.refuse = None
    assert complete(cluster).choices[0].text


def test_a_fault_that_would_repeat_is_500(cluster):
    cluster.p.refuse = FailureReason.NUMERICAL
    with pytest.raises(openai.InternalServerError) as caught:
        complete(cluster)
    assert caught.value.status_code == 500


def test_the_deadline_is_504(make_cluster):
    cluster = make_cluster(request_timeout_s=0.5)
    pair = cluster.pair()
    cluster.wait_ready()
    pair.d.mute = True
    with pytest.raises(openai.InternalServerError) as caught:
        complete(cluster, extra_headers={"X-Request-Id": "late"})
    assert caught.value.status_code == 504
    (dispatch,) = wait_for(lambda: pair.d.of("late"))
    wait_for(lambda: pair.d.aborts.get(dispatch.room) is FailureReason.DEADLINE)


def test_one_failed_sample_fails_all_and_cancels_the_rest(cluster):
    cluster.d.limit = 2
    body = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 50}
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            cluster.http.post("/v1/completions", json=body, headers={"X-Request-Id": "two"})
        )
    )
    thread.start()
    wait_for(lambda: len(cluster.d.of("two")) == 2 and len(cluster.d._held) == 2)
    first, second = cluster.d.of("two")
    cluster.d.mailbox.post(first.reply_to, LegFailed(first.room, FailureReason.NUMERICAL, "NaN"))
    thread.join(20)
    assert answers[0].status_code == 500
    wait_for(lambda: cluster.d.aborts.get(second.room) is FailureReason.CANCELLED)


def assert_both_told(cluster, request_id) -> None:
    room = wait_for(lambda: cluster.p.of(request_id))[0].room
    for worker in (cluster.p, cluster.d):
        wait_for(lambda worker=worker: worker.aborts.get(room) is FailureReason.CANCELLED)


def test_a_client_that_leaves_mid_stream_cancels_both_legs(cluster):
    cluster.d.limit = 6
    stream, _ = started_stream(cluster, "leaver")
    stream.close()
    assert_both_told(cluster, "leaver")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_cancels_both_legs(cluster, stream):
    cluster.p.mute = cluster.d.mute = True
    body = {"model": MODEL, "prompt": "x", "stream": stream}
    with waiting_client(cluster, "/v1/completions", body, {"X-Request-Id": "gone"}):
        wait_for(lambda: cluster.p.of("gone") and cluster.d.of("gone"), what="both legs")
    assert_both_told(cluster, "gone")


def test_a_client_that_leaves_before_dispatch_is_never_dispatched(make_cluster):
    cluster = make_cluster(pair_wait_s=20.0)
    body = {"model": MODEL, "prompt": "x"}
    wait_for_requests(cluster, 0)
    with waiting_client(cluster, "/v1/completions", body, {"X-Request-Id": "early"}):
        wait_for_requests(cluster, 1)
    wait_for_requests(cluster, 0)
    pair = cluster.pair()
    cluster.wait_ready()
    assert pair.p.of("early") == []


def test_garbage_on_the_inbox_harms_nobody(cluster):
    endpoint = cluster.p.dispatches[0].reply_to.endpoint
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(endpoint)
        for frame in (b"", b"\x01", b"\x00junk", b"\x01" + b"\xff" * 1000, b"GET / HTTP/1.1"):
            dealer.send(frame)
        dealer.send_multipart([b"a", b"b", b"c"])
        wait_for(
            lambda: 'messages_total{kind="undecodable"} 6.0' in cluster.http.get("/metrics").text
        )
        assert complete(cluster).choices[0].text == TEXT
    finally:
        context.destroy(linger=0)


def test_a_worker_that_goes_on_after_the_end_is_told(cluster):
    complete(cluster)
    room = new_room()
    reply_to = cluster.d.dispatches[-1].reply_to
    cluster.d.mailbox.post(reply_to, TokenBatch((RoomTokens(room, 3, (5,)),)))
    wait_for(lambda: cluster.d.aborts.get(room) is FailureReason.CANCELLED)
    assert 'dropped_messages_total{kind="room"} 1.0' in cluster.http.get("/metrics").text


def test_a_stop_lets_no_stream_hang(make_cluster):
    cluster = make_cluster(shutdown_grace_s=0.3)
    vars(cluster).update(vars(cluster.pair()))
    cluster.wait_ready()
    cluster.d.limit = 6
    stream, _ = started_stream(cluster, "last")
    cluster.server.should_exit = True
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert "stops" in str(caught.value)
    cluster.thread.join(20)
    assert not cluster.thread.is_alive()
    room = cluster.p.of("last")[0].room
    for worker in (cluster.p, cluster.d):
        wait_for(lambda worker=worker: room in worker.aborts)

"""Garbage on every socket of a running cluster: it is counted, and the next request works."""

import os
import random
import socket
from pathlib import Path

import zmq

from bootstrap import codec
from bootstrap.identity import Peer, WorkerRef, new_incarnation, new_room
from bootstrap.messages import AbortRoom, Envelope, FailureReason, HandoffRecord, Manifest
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

NUM_RANDOM_FRAMES = 200


def hostile_frames(recipient: WorkerRef) -> list[bytes]:
    dice = random.Random(3)
    me = Peer(WorkerRef("stranger", new_incarnation()), "tcp://127.0.0.1:9")
    room = new_room()
    plausible = [
        AbortRoom(room, FailureReason.CANCELLED),
        Manifest(room, 7, 0, (1, 2, 3)),
        HandoffRecord(room, 7, 1, 0, 4, b"x" * 16),
    ]
    frames = [codec.encode(Envelope(me, recipient, message)) for message in plausible]
    old = WorkerRef(recipient.worker_id, new_incarnation())
    frames += [codec.encode(Envelope(me, old, message)) for message in plausible]
    frames += [bytes([9]) + frame[1:] for frame in frames]
    frames += [frame[: len(frame) // 2] for frame in frames]
    frames += [dice.randbytes(dice.randint(0, 300)) for _ in range(NUM_RANDOM_FRAMES)]
    return frames


def send_frames(endpoint: str, recipient: WorkerRef) -> None:
    context = zmq.Context()
    try:
        outlet = context.socket(zmq.DEALER)
        outlet.linger = 30_000
        outlet.connect(endpoint)
        for frame in hostile_frames(recipient):
            outlet.send(frame)
        outlet.send_multipart([b"", b"a", b"b", b"c"])
        outlet.close()
        oversized = context.socket(zmq.DEALER)
        oversized.linger = 2000
        oversized.connect(endpoint)
        oversized.send(bytes(codec.MAX_FRAME_BYTES + 1))
        oversized.close()
    finally:
        context.term()


def send_raw_bytes(endpoint: str) -> None:
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(os.urandom(4096))


def test_the_next_request_works(tmp_path: Path) -> None:
    model_dir = make_tiny_model(tmp_path / "model")
    with (
        EngineCluster(model_dir) as cluster,
        HttpBalancer(cluster.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):
        balancer.wait_ready()
        client = balancer.client()
        ask = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 8, "seed": 1}
        before = client.completions.create(**ask)
        targets = {engine.peer.endpoint: engine.ref for engine in cluster.engines.values()}
        targets[balancer.inbox.endpoint] = balancer.inbox.ref
        targets[cluster.bootstrap] = WorkerRef("bootstrap", new_incarnation())
        for endpoint, ref in targets.items():
            send_raw_bytes(endpoint)
            send_frames(endpoint, ref)
        for engine in cluster.engines.values():
            wait_for(lambda e=engine: e.load().counters["wire_undecodable"] > 50, what="counted")
            assert engine.load().counters["wire_misaddressed"] >= 3
        after = client.completions.create(**ask)
        assert after.choices[0].text == before.choices[0].text
        assert after.usage == before.usage
        cluster.wait_idle()

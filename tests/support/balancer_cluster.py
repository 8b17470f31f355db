"""A balancer over real HTTP and ZMQ, in a thread, with scripted workers behind it; as fixtures."""

import asyncio
import threading
from types import SimpleNamespace

import httpx
import msgspec
import openai
import pytest

from bootstrap.identity import Role
from bootstrap.service import BootstrapService
from cluster.balancer.serve import listen, serve
from cluster.balancer.settings import BalancerSettings
from engine.tokenizer import Tokenizer
from tests.support.members import CONTRACT
from tests.support.scripted_workers import ScriptedWorker
from tests.support.tiny_model import EOS_TOKEN_ID, make_tiny_model
from tests.support.waiting import wait_for

TEXT = "The café serves 日本 tea, and the wind 👩‍👩‍👧 sings. END of it."
MODEL = "tiny"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def ids(tokenizer) -> tuple[int, ...]:
    """What every scripted answer says."""
    return (*tokenizer.encode(TEXT, add_special_tokens=False), EOS_TOKEN_ID)


class Cluster:
    """A bootstrap service, a balancer in a thread, and the scripted workers that a test adds."""

    def __init__(self, tokenizer: Tokenizer, ids: tuple[int, ...], **settings) -> None:
        self.ids = ids
        self.contract = msgspec.structs.replace(CONTRACT, tokenizer_digest=tokenizer.digest)
        self.service = BootstrapService("tcp://127.0.0.1:0")
        self.service.start()
        self.workers: list[ScriptedWorker] = []
        self.settings = BalancerSettings(
            host="127.0.0.1",
            port=0,
            bootstrap=self.service.endpoint,
            model_dir="unused",
            model_name=MODEL,
            **{"pair_wait_s": 0.5, "shutdown_grace_s": 0.5, **settings},
        )
        listener = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.server = None
        self.thread = threading.Thread(
            target=lambda: asyncio.run(serve(self.settings, tokenizer, listener, self._began))
        )
        self.thread.start()
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="-", max_retries=0, timeout=60
        )
        wait_for(lambda: self.get("/health") is not None, what="health")

    def _began(self, server) -> None:
        self.server = server

    def get(self, path):
        try:
            return self.http.get(path)
        except httpx.TransportError:
            return None

    def add(self, role: Role, **fields) -> ScriptedWorker:
        fields = {"contract": self.contract, **fields}
        worker = ScriptedWorker(role, self.service.endpoint, self.ids, **fields)
        self.workers.append(worker)
        return worker

    def pair(self, number: int = 1) -> SimpleNamespace:
        return SimpleNamespace(
            p=self.add(Role.PREFILL, worker_id=f"p{number}"),
            d=self.add(Role.DECODE, worker_id=f"d{number}"),
        )

    def wait_ready(self) -> None:
        wait_for(lambda: self.http.get("/ready").status_code == 200, what="readiness")

    def wait_members(self, count: int) -> None:
        wait_for(lambda: len(self.http.get("/status").json()["members"]) == count)

    def close(self) -> None:
        if self.server is not None:
            self.server.should_exit = True
        self.openai.close()
        self.http.close()
        self.thread.join(60)
        for worker in self.workers:
            worker.leave()
        self.service.stop()
        assert not self.thread.is_alive()


@pytest.fixture
def make_cluster(tokenizer, ids):
    clusters = []

    def make(**settings) -> Cluster:
        clusters.append(Cluster(tokenizer, ids, **settings))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make_cluster):
    """One pair that is ready."""
    made = make_cluster()
    vars(made).update(vars(made.pair()))
    made.wait_ready()
    return made


def complete(cluster, **fields):
    body = {"model": MODEL, "prompt": "Say it.", "max_tokens": 200, **fields}
    return cluster.openai.completions.create(**body)


def chat(cluster, **fields):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say it."}], **fields}
    return cluster.openai.chat.completions.create(**body)


def started_stream(cluster, request_id="faulty", **fields):
    """A stream whose decode worker is about to fall silent, and its first pieces."""
    stream = chat(cluster, stream=True, extra_headers={"X-Request-Id": request_id}, **fields)
    text = ""
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if len(text) >= 3:
            break
    return stream, text

"""The pods that the chart renders, run for real: they come up, answer, roll and survive.

Each container is its command as PID 1 in namespaces of this machine, as its own user over a read-only root;
its own probes say when it is ready. The tests share one release and follow one another.
"""

import base64
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import sandbox
from tests.support.chart import one, render
from tests.support.chart_load import Load, post
from tests.support.mini_kubelet import MiniKubelet
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sandbox.why_not() is not None, reason=f"{sandbox.why_not()}"),
]

BALANCER, DECODE, HEAD, PREFILL = (
    f"pd-pdserve-{role}" for role in ("balancer", "decode", "head", "prefill")
)
START_S = 240.0  # on a machine that does much else
ANSWER_S = 60.0
BODY = {"model": "tiny", "prompt": "hello there", "max_tokens": 24}
SHORT = (
    "model.source=/models/tiny",
    "model.cache.type=hostPath",
    "balancer.service.port=8000",  # a Service has no address of its own here
    "balancer.drainDelaySeconds=5",  # for who chose a pod just before it left the Service
    "balancer.shutdownGraceSeconds=60",
    "prefill.maxReplicas=1",
    "decode.replicas=2",
    "decode.maxReplicas=2",
    "prefill.drainSeconds=20",
    "decode.drainSeconds=20",
    "ray.headLossTimeoutSeconds=15",
    "settings.num_blocks=128",
    "settings.max_model_len=512",
)


class Release:
    """The chart's pods, and a client's way to them."""

    def __init__(self, kubelet: MiniKubelet, key: str) -> None:
        self.kubelet = kubelet
        self.key = key

    def load(self) -> Load:
        """Clients of the Service."""
        enter = self.kubelet.sandbox.in_network
        return Load(enter, lambda: self.kubelet.endpoints(BALANCER), BODY, self.key)

    def ask(self) -> int:
        """The status of one completion; 0 when nobody answers."""
        (address, *_) = self.kubelet.endpoints(BALANCER)
        try:
            status, _ = self.kubelet.sandbox.in_network(
                lambda: post(address, json.dumps(BODY), self.key)
            )
        except OSError:
            return 0
        return status

    def logs_of_all(self) -> str:
        return "\n".join(pod.log for pod in self.kubelet.pods.values())


@pytest.fixture(scope="module")
def release() -> Iterator[Release]:
    # pytest's own folders have names too long for Ray's sockets, and are closed to other users.
    with tempfile.TemporaryDirectory(prefix="pdk-", dir="/tmp") as name:
        models = Path(name) / "models"
        models.mkdir()
        make_tiny_model(models / "tiny")
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        objects = render(sets=(*SHORT, f"model.cache.hostPath={models}"))
        keys = one(objects, "Secret")["data"]["api-keys"]
        with MiniKubelet(objects, Path(name)) as kubelet:
            # All at once works too, but not on a machine with more to do: Ray's agent has 15 s to start.
            for workload, number in ((HEAD, 0), (PREFILL, 0), (DECODE, 0), (DECODE, 1)):
                kubelet.start(workload, number)
                kubelet.wait_ready(f"{workload}-{number}", timeout_s=START_S)
            kubelet.start_all()
            yield Release(kubelet, base64.b64decode(keys).decode())


def test_every_pod_passes_its_own_probes(release: Release) -> None:
    kubelet = release.kubelet
    kubelet.wait_ready(*kubelet.pods, timeout_s=START_S)
    assert len(kubelet.endpoints(BALANCER)) == 2
    assert [pod.killed_by for pod in kubelet.pods.values() if pod.killed_by] == []


def test_the_question_of_helm_test_is_answered(release: Release) -> None:
    pod = release.kubelet.start_pod("pd-pdserve-test")
    wait_for(lambda: pod.exit_code is not None or pod.trouble, START_S, "the test pod's end")
    assert (pod.exit_code, pod.trouble) == (0, ""), pod.log
    assert pod.log.strip()
    release.kubelet.delete(pod.name)


def test_containers_run_as_nobody_over_a_read_only_root(release: Release) -> None:
    for pod in release.kubelet.pods.values():
        for container in pod.containers.values():
            assert container.execute(["sh", "-c", "[ $(id -u) = 10001 ]"], ANSWER_S)
            assert container.execute(["touch", "/tmp/x"], ANSWER_S)
            for path in ("/x", "/models/x", "/opt/x", "/etc/pdserve/x"):
                assert not container.execute(["touch", path], ANSWER_S), path
            secret = "/etc/pdserve/secrets/cluster-secret"
            assert container.execute(["sh", "-c", f"[ $(wc -c < {secret}) = 48 ]"], ANSWER_S)
            token = "/etc/pdserve/secrets/ray-token"
            holds_token = container.execute(["test", "-e", token], ANSWER_S)
            assert holds_token == (container.spec.name != "balancer")


def test_a_rolling_restart_of_the_balancers_loses_no_request(release: Release) -> None:
    kubelet = release.kubelet
    with release.load() as load:
        for number in range(2):
            kubelet.start(BALANCER, 2 + number)  # `maxSurge: 1`
            kubelet.wait_ready(f"{BALANCER}-{2 + number}", timeout_s=START_S)
            kubelet.delete(f"{BALANCER}-{number}")
        num_done = load.num_done
        wait_for(lambda: load.num_done > num_done, 60, "requests after the restart")
    assert load.failures == [], release.logs_of_all()[-4000:]
    assert load.num_done > 5


def test_a_rolling_restart_of_decode_engines_loses_no_request(release: Release) -> None:
    kubelet = release.kubelet
    with release.load() as load:
        took_s = kubelet.delete(f"{DECODE}-0")
        kubelet.start(DECODE, 0)
        kubelet.wait_ready(f"{DECODE}-0", timeout_s=START_S)
        num_done = load.num_done
        wait_for(lambda: load.num_done > num_done, 60, "requests after the restart")
    assert load.failures == [], release.logs_of_all()[-4000:]
    assert took_s < 20 + 30, "it went before its grace was over"


def test_a_lost_head_comes_back_and_clients_are_told_503_meanwhile(release: Release) -> None:
    """As the chart's README says: engines end, balancers stay, everything starts again by itself."""
    kubelet = release.kubelet
    kubelet.wait_ready(*kubelet.pods, timeout_s=START_S)
    kubelet.delete(f"{HEAD}-0", grace_s=0)
    wait_for(lambda: release.ask() == 503, START_S, "an honest refusal")
    assert len(kubelet.endpoints(BALANCER)) == 2, "balancers stay in the Service"
    kubelet.start(HEAD, 0)
    kubelet.wait_ready(f"{HEAD}-0", f"{DECODE}-0", f"{DECODE}-1", timeout_s=START_S)
    # The engines may still have been those of the lost head, which stay ready for a while.
    wait_for(lambda: release.ask() == 200, START_S, "an answer")

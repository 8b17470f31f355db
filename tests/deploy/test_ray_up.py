"""`pdserve ray-up` for real: a launcher and three hosts, each with its own processes, network and sshd."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.ray import cluster_file
from tests.support import sandbox
from tests.support.programs import absent, program
from tests.support.simulated_hosts import HOME, MODEL, SimulatedHost, SimulatedHosts
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NAMES = ("ctl", "head", "prefill0", "decode0")
UP_S = 400
BACK_S = 300.0
KV_BYTES_PER_TOKEN = (
    2 * 3 * 2 * 16 * 4
)  # keys and values, layers, heads, width, bytes: of the tiny model
PROMPT = "the rain in the north and the sun in the east " * 12
FLAGS = ("--model", MODEL, "--host", "0.0.0.0", "--start-timeout-s", str(UP_S))
# A host without power is noticed within seconds, not half a minute, and the autoscaler looks more often.
IMPATIENT = (
    "AUTOSCALER_UPDATE_INTERVAL_S=2 RAY_health_check_initial_delay_ms=1000 RAY_health_check_period_ms=1000"
    " RAY_health_check_timeout_ms=3000 RAY_health_check_failure_threshold=4 "
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[SimulatedHosts]:
    reason = sandbox.why_not()
    if reason is not None:
        absent(f"hosts cannot be simulated: {reason}")
    for name, package in (
        ("sshd", "openssh-server"),
        ("ssh", "openssh-client"),
        ("rsync", "rsync"),
    ):
        program(name, package)
    folder = Path(tempfile.mkdtemp(prefix="pdh-", dir="/tmp"))  # socket paths are short
    try:
        model = make_tiny_model(folder / "tiny", max_position_embeddings=2048)
        with SimulatedHosts(folder, model, NAMES) as found:
            yield found
    finally:
        shutil.rmtree(folder)


def cluster(hosts: SimulatedHosts, example: str) -> dict[str, Any]:
    """A shipped cluster file with what its comments mark changed; the program and the model are there."""
    content: dict[str, Any] = yaml.safe_load(cluster_file.example(example))
    content["auth"] = {"ssh_user": "root", "ssh_private_key": "~/.ssh/id"}
    del content["file_mounts"]["~/.pdserve/wheels"]
    content["setup_commands"] = []
    for name, node_type in content.get("available_node_types", {}).items():
        node_type["node_config"]["ips"] = [hosts[name if name == "head" else f"{name}0"].address]
    commands = content["head_start_ray_commands"]
    commands[-1] = IMPATIENT + commands[-1]
    return content


def write(hosts: SimulatedHosts, name: str, content: dict[str, Any]) -> None:
    folder = hosts["ctl"].root / HOME.lstrip("/") / "deploy"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(yaml.safe_dump(content))


def launch(hosts: SimulatedHosts, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on the launcher, beside the cluster file."""
    done = hosts["ctl"].run("env", f"--chdir={HOME}/deploy", *command, timeout_s=UP_S + 60)
    print("$", *command, f"-> {done.returncode}\n{done.stdout}")  # pytest shows it with a failure
    return done


def ask(hosts: SimulatedHosts) -> httpx.Response:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
    return get(hosts, "POST", "/v1/completions", body)


def get(hosts: SimulatedHosts, method: str, path: str, body: Any = None) -> httpx.Response:
    url = f"http://{hosts['head'].address}:8000{path}"
    return hosts["ctl"].in_network(lambda: httpx.request(method, url, json=body, timeout=60))


def answers(hosts: SimulatedHosts) -> httpx.Response | None:
    try:
        response = ask(hosts)
    except httpx.TransportError:
        return None
    return response if response.is_success else None


def written_bytes(hosts: SimulatedHosts) -> float:
    """What prefill's transfers have written, as the load balancer knows."""
    key = 'pdserve:engine_events_total{kind="transfer_written_bytes",role="prefill"'
    lines = get(hosts, "GET", "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(key))


def received_bytes(host: SimulatedHost) -> int:
    """By the host's network interface, which is all that connects it."""
    lines = host.run("cat", "/proc/net/dev").stdout.splitlines()
    (counters,) = [line.split() for line in lines if line.strip().startswith("eth0:")]
    return int(counters[1])


def leftovers(host: SimulatedHost) -> str:
    """Files in the home and in /tmp that were not there when it was turned on."""
    found = f"find {HOME} /tmp -mindepth 1 -not -path '{HOME}/.ssh*' -not -path {HOME}/pdserve"
    return host.run("sh", "-c", f"{found} -not -path '{HOME}/deploy*' -not -name .bashrc").stdout


def actors(host: SimulatedHost) -> set[str]:
    """Of ours, by the names that Ray gives their processes."""
    found = re.findall(r"^ray::(\w+Actor)\b", "\n".join(host.commands()), re.MULTILINE)
    return set(found)


def states(hosts: SimulatedHosts) -> dict[str, str]:
    """The workers as `up` on the head sees them, from its own file."""
    (path,) = (hosts["head"].root / "tmp").glob("pdserve-*/*/supervision.json")
    return {w["worker_id"]: w["state"] for w in json.loads(path.read_bytes())["workers"]}


def test_a_failing_command_is_named_with_its_host(hosts: SimulatedHosts) -> None:
    content = cluster(hosts, "onprem")
    content["head_setup_commands"] = ["echo no licence for this >&2; exit 3"]
    write(hosts, "broken.yaml", content)
    done = launch(hosts, "pdserve", "ray-up", "broken.yaml", *FLAGS)
    assert done.returncode == 1
    assert f"host {hosts['head'].address}: Setup commands failed: echo no licence" in done.stdout
    assert "\n    no licence for this\n" in done.stdout


def test_three_hosts_from_nothing_to_serving_through_a_loss_and_back_to_nothing(
    hosts: SimulatedHosts,
) -> None:
    write(hosts, "onprem.yaml", cluster(hosts, "onprem"))
    up = ("pdserve", "ray-up", "onprem.yaml", *FLAGS)
    first = launch(hosts, *up)
    assert first.returncode == 0
    assert "2 engines serve" in first.stdout
    assert actors(hosts["prefill0"]) == {"PrefillActor"}
    assert actors(hosts["decode0"]) == {"DecodeActor"}
    assert actors(hosts["head"]) == {"SupervisorActor", "BootstrapActor"}

    answer = check_that_pages_cross(hosts)

    seen = launch(hosts, "ray", "exec", "onprem.yaml", "~/pdserve/bin/pdserve status")
    assert seen.returncode == 0
    assert "pairs that can serve: 1" in seen.stdout

    second = launch(hosts, *up)
    assert second.returncode == 0
    assert "2 engines serve already: nothing to do" in second.stdout
    other = launch(hosts, *up, "--num-blocks", "99")
    assert other.returncode == 2
    assert "--num-blocks=99" in other.stdout
    assert "not `pdserve up" in other.stdout

    lose_and_regain(hosts, up, answer)

    bring_down(hosts, "onprem.yaml")


def test_the_local_provider_brings_up_every_worker_too(hosts: SimulatedHosts) -> None:
    content = cluster(hosts, "local")
    addresses = [hosts[name].address for name in ("head", "prefill0", "decode0")]
    content["provider"] |= {"head_ip": addresses[0], "worker_ips": addresses[1:]}
    commands = content["worker_start_ray_commands"]
    assert "10.0.0.12" in commands[-1]
    commands[-1] = commands[-1].replace("10.0.0.12", addresses[1])
    write(hosts, "local.yaml", content)
    up = launch(hosts, "pdserve", "ray-up", "local.yaml", "--prefill", "1", "--decode", "1", *FLAGS)
    assert up.returncode == 0
    assert actors(hosts["prefill0"]) == {"PrefillActor"}
    assert actors(hosts["decode0"]) == {"DecodeActor"}
    check_that_pages_cross(hosts)
    bring_down(hosts, "local.yaml")


def bring_down(hosts: SimulatedHosts, file: str) -> None:
    """End it, and find no process and no file of it on any host."""
    down = launch(hosts, "pdserve", "ray-down", file)
    assert down.returncode == 0
    for host in hosts.hosts.values():
        wait_for(lambda host=host: not host.commands(), 120, f"{host.name} idle")  # type: ignore[misc]
        assert leftovers(host) == ""


def check_that_pages_cross(hosts: SimulatedHosts) -> str:
    """Ask, and see the prompt's pages come in at decode's network interface; the answer."""
    written, received = written_bytes(hosts), received_bytes(hosts["decode0"])
    response = ask(hosts)
    assert response.status_code == 200
    usage = response.json()["usage"]
    assert usage["completion_tokens"] == 16
    num_bytes = usage["prompt_tokens"] * KV_BYTES_PER_TOKEN
    assert num_bytes > 100_000
    wait_for(lambda: written_bytes(hosts) - written >= num_bytes, 30, "the heartbeat after it")
    # No memory is shared between the hosts: all of it came by TCP.
    assert received_bytes(hosts["decode0"]) - received >= num_bytes
    text: str = response.json()["choices"][0]["text"]
    return text


def lose_and_regain(hosts: SimulatedHosts, up: tuple[str, ...], answer: str) -> None:
    """Cut decode's power: honest refusals, a named host, and service again when it is back."""
    hosts["decode0"].turn_off()
    refused = wait_for(lambda: (r := ask(hosts)).status_code == 503 and r, 60, "an honest refusal")
    assert int(refused.headers["Retry-After"]) > 0
    wait_for(lambda: states(hosts)["decode-0"] == "starting", 90, "the loss noticed by Ray")
    missing = launch(hosts, *up[:-1], "40")
    assert missing.returncode == 1
    _, _, why = missing.stdout.rpartition("pdserve: ")
    assert why.startswith(f"host {hosts['decode0'].address}: no node of Ray now\n1 of 2 engines")
    assert "decode-0: waiting for a slot: 1 of 1 pd_decode missing; nodes offer: " in why

    hosts["decode0"].turn_on()
    response = wait_for(lambda: answers(hosts), BACK_S, "service with the host that is back")
    assert response.json()["choices"][0]["text"] == answer
    assert actors(hosts["decode0"]) == {"DecodeActor"}

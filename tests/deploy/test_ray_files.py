"""The shipped cluster files pass Ray's own checks and give roles their labels and slots."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import NODE_KIND_WORKER, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

from cluster.ray import cluster_file
from cluster.ray.provider import FixedHosts


@pytest.fixture(params=cluster_file.EXAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def prepared(name: str) -> dict[str, Any]:
    """As Ray's launcher has it, with its defaults, after its own check."""
    config: dict[str, Any] = prepare_config(yaml.safe_load(cluster_file.example(name)))
    validate_config(config)
    return config


def test_every_start_asks_for_a_token_and_leaves_priorities_alone(prepared: dict[str, Any]) -> None:
    head = prepared["head_start_ray_commands"]
    worker = prepared["worker_start_ray_commands"]
    starts = [command for command in (*head, *worker) if "ray start" in command]
    assert len(starts) == (2 if worker else 1)
    for command in starts:
        before = command.partition("ray start")[0]
        assert "RAY_AUTH_MODE=token" in before
        assert "RAY_worker_niceness=0" in before


def test_the_head_takes_no_engine_unless_it_is_alone(name: str, prepared: dict[str, Any]) -> None:
    if name == "local":
        head, worker = (prepared[f"{kind}_start_ray_commands"][-1] for kind in ("head", "worker"))
        assert "--labels=pd-role=head" in head
        assert "--resources" not in head
        assert "--labels=pd-role=$role" in worker
        assert '--resources="{\\"pd_$role\\": 1}"' in worker
        return
    types = prepared["available_node_types"]
    head_type = types.pop(prepared["head_node_type"])
    assert head_type["labels"] == {"pd-role": "head"}
    slots = {key for key in head_type["resources"] if key.startswith("pd_")}
    assert slots == ({"pd_prefill", "pd_decode"} if name == "single" else set())
    for role, node_type in types.items():
        assert node_type["labels"] == {"pd-role": role}
        assert node_type["resources"][f"pd_{role}"] == 1
    assert set(types) == (set() if name == "single" else {"prefill", "decode"})


def test_enough_workers_are_allowed(prepared: dict[str, Any]) -> None:
    types = prepared["available_node_types"].values()
    assert sum(node_type["min_workers"] for node_type in types) <= prepared["max_workers"]


def fixed_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, dict[str, str]]:
    """A provider whose notes are in `folder`, its two decode hosts, and such a node's tags."""
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    content = yaml.safe_load(cluster_file.example("onprem"))
    decode = content["available_node_types"]["decode"]
    decode["node_config"]["ips"] = ["10.0.0.13", "10.0.0.14"]
    config = FixedHosts.bootstrap_config(prepare_config(content))
    tags = {TAG_RAY_NODE_KIND: NODE_KIND_WORKER, TAG_RAY_USER_NODE_TYPE: "decode"}
    return FixedHosts(config["provider"], "test"), decode["node_config"], tags


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray closes no file
def test_fixed_hosts_are_given_out_by_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, node_config, tags = fixed_hosts(tmp_path, monkeypatch)
    provider.create_node(node_config, tags, 1)
    assert provider.non_terminated_nodes(tags) == ["10.0.0.13"]
    with pytest.raises(NodeLaunchException, match="2 wanted, 1 free"):
        provider.create_node(node_config, tags, 2)
    provider.create_node(node_config, tags, 1)
    assert provider.non_terminated_nodes(tags) == ["10.0.0.13", "10.0.0.14"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray closes no file
def test_a_host_rests_until_its_loss_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    provider, node_config, tags = fixed_hosts(tmp_path, monkeypatch)
    provider.create_node(node_config, tags, 1)
    provider.terminate_node("10.0.0.13")
    assert provider.non_terminated_nodes({}) == []
    provider.create_node(node_config, tags, 1)
    assert provider.non_terminated_nodes(tags) == ["10.0.0.14"]
    now += 60.0
    provider.create_node(node_config, tags, 1)
    assert provider.non_terminated_nodes(tags) == ["10.0.0.13", "10.0.0.14"]


def test_more_workers_than_hosts_are_refused() -> None:
    content = yaml.safe_load(cluster_file.example("onprem"))
    content["available_node_types"]["decode"]["max_workers"] = 2
    with pytest.raises(ValueError, match=r"decode\.max_workers=2: it has 1 hosts"):
        FixedHosts.bootstrap_config(prepare_config(content))

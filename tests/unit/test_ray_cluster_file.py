"""Cluster files: what they promise, what they must have, and how `up`'s settings travel to the head."""

import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster.cli import run
from cluster.ray import cluster_file, commands, launcher, telling
from cluster.ray.telling import Looked


def written(folder: Path, example: str, **changes: Any) -> Path:
    content = yaml.safe_load(cluster_file.example(example)) | changes
    path = folder / f"{example}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.parametrize("example", cluster_file.EXAMPLES)
def test_every_example_says_where_its_secrets_lie(tmp_path: Path, example: str) -> None:
    file = cluster_file.read(written(tmp_path, example))
    assert file.secret == tmp_path / "pdserve.secret"
    assert file.ray_token == tmp_path / "pdserve.ray-token"


def test_fixed_hosts_and_their_slots_are_known(tmp_path: Path) -> None:
    file = cluster_file.read(written(tmp_path, "onprem"))
    assert (file.head, file.workers) == ("10.0.0.11", ("10.0.0.12", "10.0.0.13"))
    assert file.slots == {Role.PREFILL: 1, Role.DECODE: 1}
    assert file.ssh.user == "ubuntu"


def test_a_head_with_slots_has_engines_too(tmp_path: Path) -> None:
    file = cluster_file.read(written(tmp_path, "single"))
    assert (file.head, file.workers) == ("10.0.0.11", ())
    assert file.slots == {Role.PREFILL: 1, Role.DECODE: 1}


def test_machines_of_a_cloud_have_slots_and_no_addresses(tmp_path: Path) -> None:
    file = cluster_file.read(written(tmp_path, "aws"))
    assert (file.head, file.workers) == (None, ())
    assert file.slots == {Role.PREFILL: 1, Role.DECODE: 1}


def test_roles_that_only_a_start_command_knows_must_be_counted_by_the_user(tmp_path: Path) -> None:
    file = cluster_file.read(written(tmp_path, "local"))
    assert (file.head, file.workers) == ("10.0.0.11", ("10.0.0.12", "10.0.0.13"))
    with pytest.raises(ConfigError, match="prefill=None decode=None: both are needed"):
        launcher.expected(file, 1, None)
    assert launcher.expected(file, 1, 2) == {Role.PREFILL: 1, Role.DECODE: 2}


def test_an_engine_for_every_slot_unless_told_otherwise(tmp_path: Path) -> None:
    types = yaml.safe_load(cluster_file.example("onprem"))["available_node_types"]
    types["decode"] |= {"min_workers": 3, "max_workers": 4}
    types["decode"]["resources"]["pd_decode"] = 2
    file = cluster_file.read(written(tmp_path, "onprem", available_node_types=types))
    assert launcher.expected(file, None, None) == {Role.PREFILL: 1, Role.DECODE: 6}
    with pytest.raises(
        ConfigError, match=r"decode=9: at most 8 are allowed; slots are .* pd_decode"
    ):
        launcher.expected(file, 1, 9)
    assert launcher.expected(file, None, 2) == {Role.PREFILL: 1, Role.DECODE: 2}
    types["head"] |= {"resources": {"pd_decode": 1}, "max_workers": 2}  # workers of the head's kind
    file = cluster_file.read(written(tmp_path, "onprem", available_node_types=types))
    assert file.most_slots == {Role.PREFILL: 1, Role.DECODE: 11}
    del types["decode"]["max_workers"]  # then the whole file's is the limit
    file = cluster_file.read(written(tmp_path, "onprem", available_node_types=types))
    assert file.most_slots == {Role.PREFILL: 1, Role.DECODE: 7}
    file = cluster_file.read(
        written(tmp_path, "onprem", available_node_types=types, max_workers=None)
    )
    assert file.most_slots is None
    assert launcher.expected(file, 1, 30) == {Role.PREFILL: 1, Role.DECODE: 30}
    del types["prefill"]
    file = cluster_file.read(written(tmp_path, "onprem", available_node_types=types))
    with pytest.raises(ConfigError, match=r"prefill=0: .* pd_prefill of node types"):
        launcher.expected(file, None, None)


def test_a_checkout_that_is_not_installed_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Path(sys.base_prefix) / "bin" / "python3"  # without what the environment has
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    path = written(tmp_path, "onprem")
    assert run(["ray-up", str(path)]) == 2
    assert f"pdserve is not installed in {bare}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file_mounts": {}}, r"file_mounts: a file for '~/\.pdserve/secret' is needed"),
        ({"head_node_type": "king"}, "head_node_type='king': allowed are head, prefill, decode,"),
        ({"provider": ["aws"]}, r"provider=\['aws'\]: a mapping is needed"),
        (
            {"available_node_types": {"head": {"resources": {}, "node_config": {}}}},
            r"available_node_types\.head\.node_config: `ips` is needed",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cluster_file.read(written(tmp_path, "onprem", **changes))


@pytest.mark.parametrize("text", [None, "a: [", "- a list"])
def test_what_is_no_cluster_file_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "cluster.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"cluster_file='.*cluster\.yaml'"):
        cluster_file.read(path)


def test_secrets_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    file = cluster_file.read(written(tmp_path, "onprem"))
    launcher.make_secrets(file)
    secrets = [path.read_text() for path in (file.secret, file.ray_token)]
    assert len(set(secrets)) == 2
    assert all(len(secret) == 64 for secret in secrets)
    assert stat.S_IMODE(file.secret.stat().st_mode) == 0o600
    launcher.make_secrets(file)
    assert [path.read_text() for path in (file.secret, file.ray_token)] == secrets


def test_settings_travel_as_flags() -> None:
    values = {"model": "~/m", "prefix_caching": False, "endpoint": True, "api_key_file": None}
    assert commands.flags_of(values) == ["--model=~/m", "--no-prefix-caching", "--endpoint"]


def test_a_wrong_setting_is_told_before_any_host_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "ray_up", lambda *arguments: pytest.fail("a host was touched"))
    assert run(["ray-up", str(written(tmp_path, "onprem")), "--block-size", "-1"]) == 2
    assert "block_size=-1" in capsys.readouterr().err


def test_the_head_is_heard_among_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    looked = Looked(ray=True, flags=("--decode=2",), num_serving=3, num_workers=4)
    telling.tell(looked)
    telling.say("prefill-0: importing")
    telling.fail("host 10.0.0.2: lost\n    no disk")
    lines = ["Fetched IP: 10.0.0.1", *capsys.readouterr().out.splitlines(), "closed."]
    assert telling.told(lines) == looked
    assert [words for line in lines if (words := telling.said(line))] == ["prefill-0: importing"]
    assert telling.failure(lines) == "host 10.0.0.2: lost\n    no disk"
    assert telling.told(lines[:1]) is None
    assert telling.failure(lines[:1]) is None

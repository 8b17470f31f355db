"""A cluster file as the two commands read it: which hosts and slots it promises, which secrets it syncs.

Pure but for reading the one file; Ray's own launcher reads and checks the rest of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster.placement import SLOTS

EXAMPLES = ("onprem", "single", "local", "aws", "gcp")

# Where every host has them; `~` is the user's that Ray logs in as.
SECRET = "~/.pdserve/secret"
RAY_TOKEN = "~/.ray/auth_token"
MODEL = "~/.pdserve/model"

FIXED_HOSTS = "cluster.ray.provider.FixedHosts"


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """One cluster file. `slots` are those of the hosts that start at once, `most_slots` those of as many as
    there may be; None where only a start command, or nobody, knows them.

    `head` and `workers` are the addresses of hosts that were there before and stay; None and none for
    machines that are made and ended by a cloud.
    """

    path: Path
    name: str
    head: str | None
    workers: tuple[str, ...]
    slots: Mapping[Role, int] | None
    most_slots: Mapping[Role, int] | None
    secret: Path
    ray_token: Path
    ssh: "SshLogin"
    has_own_provider: bool


@dataclass(frozen=True, slots=True)
class SshLogin:
    """How the file says that hosts are reached."""

    user: str
    key: str | None
    proxy_command: str | None


def example(name: str) -> str:
    """The text of one of EXAMPLES; raises ConfigError for any other."""
    if name not in EXAMPLES:
        raise ConfigError(f"name={name!r}: allowed are {', '.join(EXAMPLES)}")
    return resources.files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def read(path: Path) -> ClusterFile:
    """Read a cluster file; raises ConfigError that names the key."""
    path = path.absolute()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cluster_file={str(path)!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"cluster_file={str(path)!r}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"cluster_file={str(path)!r}: a mapping of keys to values is needed")
    provider = _mapping(content, "provider")
    head, workers = _fixed_hosts(content, provider)
    auth = _mapping(content, "auth")
    return ClusterFile(
        path=path,
        name=str(content.get("cluster_name") or "default"),
        head=head,
        workers=workers,
        slots=_slots(content, "min_workers", 0),
        most_slots=_slots(content, "max_workers", content.get("max_workers")),
        secret=_synced(content, path.parent, SECRET),
        ray_token=_synced(content, path.parent, RAY_TOKEN),
        ssh=SshLogin(
            user=str(auth.get("ssh_user") or ""),
            key=auth.get("ssh_private_key"),
            proxy_command=auth.get("ssh_proxy_command"),
        ),
        has_own_provider=provider.get("module") == FIXED_HOSTS,
    )


def _fixed_hosts(
    content: dict[str, Any], provider: dict[str, Any]
) -> tuple[str | None, tuple[str, ...]]:
    if provider.get("type") == "local" and "head_ip" in provider:
        return str(provider["head_ip"]), tuple(map(str, provider.get("worker_ips") or ()))
    if provider.get("module") != FIXED_HOSTS:
        return None, ()
    types, head_type = _mapping(content, "available_node_types"), content.get("head_node_type")
    addresses = {name: _addresses(name, node_type) for name, node_type in types.items()}
    if not addresses.get(str(head_type)):
        raise ConfigError(
            f"head_node_type={head_type!r}: allowed are {', '.join(types)}, with one host in ips"
        )
    return addresses[str(head_type)][0], tuple(
        address for name, found in addresses.items() if name != head_type for address in found
    )


def _addresses(name: str, node_type: Any) -> list[str]:
    try:
        return [str(address) for address in node_type["node_config"]["ips"]]
    except (KeyError, TypeError):
        raise ConfigError(f"available_node_types.{name}.node_config: `ips` is needed") from None


def _slots(content: dict[str, Any], count_key: str, default: int | None) -> dict[Role, int] | None:
    """Of the head and of as many workers of each type as its `count_key` says; None for no limit."""
    if "available_node_types" not in content:
        return None
    found = dict.fromkeys(SLOTS, 0)
    for name, node_type in _mapping(content, "available_node_types").items():
        is_head = name == content.get("head_node_type")
        count = node_type.get(count_key, 0 if is_head else default)
        if count is None:
            return None
        for role, resource in SLOTS.items():
            offered = (node_type.get("resources") or {}).get(resource, 0)
            found[role] += (is_head + count) * offered
    return found


def _synced(content: dict[str, Any], folder: Path, target: str) -> Path:
    """The launcher's file that Ray copies to `target` on every host."""
    mounts = _mapping(content, "file_mounts")
    if target not in mounts:
        raise ConfigError(
            f"file_mounts: a file for {target!r} is needed; `pdserve ray-up` makes it if it is not there"
        )
    return folder / Path(str(mounts[target])).expanduser()


def _mapping(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key}={value!r}: a mapping is needed")
    return value

"""Fixed hosts as a node provider for Ray's autoscaler, with a node type per role.

Ray's own `local` provider has one node type and, with the present autoscaler, never starts its second
worker. Here every node type lists its hosts:

    provider: {type: external, module: cluster.ray.provider.FixedHosts}
    available_node_types: {decode: {node_config: {ips: [10.0.0.13, 10.0.0.14]}, ...}}

Owns which host is in use as which type. Ray imports it on the launcher and on the head.
"""

import os
import time
from typing import Any

from ray.autoscaler._private.constants import AUTOSCALER_UPDATE_INTERVAL_S
from ray.autoscaler._private.local.node_provider import LocalNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

_FREE_AT = "free_at"
_REST_S = 2 * AUTOSCALER_UPDATE_INTERVAL_S  # so that one of its looks falls in between


class FixedHosts(LocalNodeProvider):  # type: ignore[misc]
    """Each host of each type is one node at most, named by its address."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        head = provider_config["head_ip"]
        # The launcher's record of the head is not on the head, where the autoscaler looks for it. Ray
        # exports these two there before it starts.
        if os.environ.get("RAY_CLOUD_INSTANCE_ID") != head:
            return
        if self.state.get()[head]["state"] != "running":
            tags = {
                TAG_RAY_NODE_KIND: NODE_KIND_HEAD,
                TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
                TAG_RAY_USER_NODE_TYPE: os.environ["RAY_NODE_TYPE_NAME"],
                TAG_RAY_NODE_NAME: f"ray-{cluster_name}-head",
            }
            self.state.put(head, {"state": "running", "tags": tags})

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        """Take `count` free hosts of the type; raises NodeLaunchException when there are fewer.

        The autoscaler takes a raised error as a reason to ask again, and fewer nodes as some to come.
        """
        with self.state.lock, self.state.file_lock:
            hosts = self.state.get()
            free = [ip for ip in node_config["ips"] if _is_free(hosts[ip])]
            if len(free) < count:
                raise NodeLaunchException("no free host", f"{count} wanted, {len(free)} free", None)
            for ip in free[:count]:
                self.state.put(ip, {"state": "running", "tags": dict(tags)})

    def terminate_node(self, node_id: str) -> None:
        """Give the host back, but not at once.

        The autoscaler must have seen it gone: it takes the next node of that name for the old one.
        """
        super().terminate_node(node_id)
        with self.state.lock, self.state.file_lock:
            host = self.state.get()[node_id]
            self.state.put(node_id, {**host, _FREE_AT: time.time() + _REST_S})

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Tell the parent class which host is the head and which are not."""
        types, head_type = cluster_config["available_node_types"], cluster_config["head_node_type"]
        for name, node_type in types.items():
            num_hosts, most = len(node_type["node_config"]["ips"]), node_type["max_workers"]
            if most > num_hosts:
                raise ValueError(
                    f"available_node_types.{name}.max_workers={most}: it has {num_hosts} hosts"
                )
        provider = cluster_config["provider"]
        provider["head_ip"] = types[head_type]["node_config"]["ips"][0]
        provider["worker_ips"] = [
            ip
            for name, node_type in types.items()
            if name != head_type
            for ip in node_type["node_config"]["ips"]
        ]
        return cluster_config


def _is_free(host: dict[str, Any]) -> bool:
    return host["state"] == "terminated" and time.time() >= float(host.get(_FREE_AT, 0.0))

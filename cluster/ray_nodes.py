"""The joined Ray's nodes as they are now. Import it when Ray runs."""

import ray

from cluster.placement import Node


def living() -> list[Node]:
    """Every node that lives, in the order of their addresses."""
    nodes = [
        Node(str(node["NodeManagerAddress"]), node.get("Labels", {}), node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(nodes, key=lambda node: node.address)

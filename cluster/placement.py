"""Where an engine may run: on any node, or in a slot that a node offers for its role.

Pure: what it needs to know of the nodes comes in. Nodes that tell roles apart have Ray labels and custom
resources, as the Helm chart and the cluster files give them:

    ray start --labels=pd-role=head ...
    ray start --labels=pd-role=prefill --resources='{"pd_prefill": 1}' ...

A head with slots of its own has engines too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster.addresses import is_loopback

ROLE_LABEL = "pd-role"
SLOTS = {Role.PREFILL: "pd_prefill", Role.DECODE: "pd_decode"}

_MAX_NODES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of Ray's: its address, labels and all of its resources."""

    address: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]

    def slots(self, role: Role) -> int:
        """Engines of `role` that may run there."""
        return int(self.resources.get(SLOTS[role], 0))

    def __str__(self) -> str:
        offered = [f"{self.slots(role)} {SLOTS[role]}" for role in SLOTS if self.slots(role)]
        name = self.labels.get(ROLE_LABEL)
        return f"{self.address}{f' ({name})' if name else ''} {' and '.join(offered) or 'none'}"


def slot(role: Role, own_labels: Mapping[str, str], nodes: Sequence[Node] = ()) -> dict[str, float]:
    """The custom resources that a worker of `role` claims; `own_labels` are the supervisor's node's.

    Where that node has a role of its own, or any of `nodes` has slots, an engine waits for a node with a
    free slot, also when none is there yet; else Ray places it anywhere.
    """
    if role not in SLOTS:
        return {}
    if ROLE_LABEL not in own_labels and not any(n.slots(r) for n in nodes for r in SLOTS):
        return {}
    return {SLOTS[role]: 1.0}


def shortage(role: Role, num_wanted: int, nodes: Sequence[Node]) -> str | None:
    """How many slots `num_wanted` engines of `role` lack and what nodes offer; None when none lack."""
    num_slots = sum(node.slots(role) for node in nodes)
    if num_slots >= num_wanted:
        return None
    offers = ", ".join(map(str, nodes[:_MAX_NODES_NAMED]))
    if len(nodes) > _MAX_NODES_NAMED:
        offers += f" and {len(nodes) - _MAX_NODES_NAMED} more"
    return (
        f"waiting for a slot: {num_wanted - num_slots} of {num_wanted} {SLOTS[role]} missing;"
        f" nodes offer: {offers}"
    )


def check_addresses(addresses: Sequence[str]) -> None:
    """Raise ConfigError when a node has told the others an address that leads them to themselves."""
    if len(set(addresses)) < 2:
        return
    for address in addresses:
        if is_loopback(address):
            others = ", ".join(sorted(set(addresses) - {address}))
            raise ConfigError(
                f"a Ray node has the address {address}, at which {others} cannot reach it: start Ray"
                " there with --node-ip-address"
            )

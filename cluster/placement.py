"""Where an engine may run: on any node, or in a slot that a node offers for its role.

Pure: what it needs to know of the node comes in. Nodes that tell roles apart have Ray labels and custom
resources, as the Helm chart and the cluster files give them:

    ray start --labels=pd-role=head ...
    ray start --labels=pd-role=prefill --resources='{"pd_prefill": 1}' ...
"""

from collections.abc import Mapping

from bootstrap.identity import Role

ROLE_LABEL = "pd-role"


def slot(role: Role, own_labels: Mapping[str, str]) -> dict[str, float]:
    """The custom resources that a worker of `role` claims; `own_labels` are the supervisor's node's.

    Where that node has a role of its own, an engine waits for a node with a free slot, also when none
    is there yet; else Ray places it anywhere.
    """
    if ROLE_LABEL not in own_labels or role not in (Role.PREFILL, Role.DECODE):
        return {}
    return {f"pd_{role.value}": 1.0}

"""Hosts that Ray is about to take away, and who runs there.

Ray marks a host as draining when `ray start --block` gets SIGTERM, as in a Kubernetes pod that ends, and
kills the host's actors at the deadline without a word to them. Import it when Ray runs.
"""

import math
import time
from typing import Any

from ray._private.state import (
    actors,
    state,
)  # there is no public way to ask without Ray's dashboard


def time_left_s() -> dict[str, float]:
    """Seconds until each draining host's actors are killed, by node id; infinite without a deadline."""
    now_ms = time.time() * 1000
    deadlines: dict[str, int] = state.get_draining_nodes()
    return {
        node: max(0.0, at_ms - now_ms) / 1000 if at_ms else math.inf  # as Ray writes "none"
        for node, at_ms in deadlines.items()
    }


def node_of(actor: Any) -> str:
    """The id of the node where `actor` runs; empty before it has a process."""
    facts = actors(actor._actor_id.hex())
    return str(facts.get("Address", {}).get("NodeID", ""))

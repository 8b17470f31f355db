"""How long a host that Ray takes away still has, as its engines' drains are told."""

import math
import time
from types import SimpleNamespace

from cluster import draining_nodes


def test_a_host_without_a_deadline_has_all_the_time(monkeypatch):
    soon = int((time.time() + 100.0) * 1000)
    told = {"soon": soon, "over": 1, "whenever": 0}
    state = SimpleNamespace(get_draining_nodes=lambda: told)
    monkeypatch.setattr(draining_nodes, "state", state)
    left_s = draining_nodes.time_left_s()
    assert 90.0 < left_s["soon"] <= 100.0
    assert (left_s["over"], left_s["whenever"]) == (0.0, math.inf)

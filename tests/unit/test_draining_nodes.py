"""How long a host that Ray takes away still has, as its engines' drains are told."""

import math
from types import SimpleNamespace

from cluster import draining_nodes


def test_a_host_without_a_deadline_has_all_the_time(monkeypatch):
    monkeypatch.setattr(draining_nodes, "time", SimpleNamespace(time=lambda: 1000.0))
    told = {"soon": 1_100_000, "over": 999_999, "whenever": 0}
    state = SimpleNamespace(get_draining_nodes=lambda: told)
    monkeypatch.setattr(draining_nodes, "state", state)
    assert draining_nodes.time_left_s() == {"soon": 100.0, "over": 0.0, "whenever": math.inf}

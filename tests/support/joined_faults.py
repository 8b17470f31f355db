"""Drives a joined cluster through a storm of faults, and then until it is idle again."""

from dataclasses import dataclass
from random import Random

from bootstrap.sampling import SamplingParams
from tests.support.cores import prompt
from tests.support.joined import Choice, Cluster

_FAMILIES = (0, 30, 60)  # prompts of one family share their first blocks


@dataclass(frozen=True, slots=True)
class Storm:
    """Chances per event. `slow_writes` is how often a write has to wait for something else."""

    num_events: int = 600
    cancel: float = 0.0
    crash: float = 0.0
    fall_silent: float = 0.0
    fail_write: float = 0.0
    corrupt_write: float = 0.0
    fail_step: float = 0.0
    lose_message: float = 0.0  # between engines
    pass_time: float = 0.02
    slow_writes: float = 0.0


def submit_many(
    cluster: Cluster, rng: Random, num_requests: int, *, deadline_s: float = 1000.0
) -> None:
    """Requests of mixed sizes, some with shared prefixes, some that stop early."""
    for _ in range(num_requests):
        token_ids = prompt(rng.randint(1, 12), first=rng.choice(_FAMILIES))
        params = SamplingParams(
            seed=rng.randint(0, 99),
            max_tokens=rng.randint(1, 12),
            min_tokens=rng.randint(0, 2),
            stop_token_ids=(3, 4, 5, 6, 7, 8),
        )
        cluster.balancer.submit(token_ids, params, deadline_s)
    cluster.settle()


def weather(cluster: Cluster, rng: Random, storm: Storm) -> None:
    """Faults at any moment for `num_events` events; then calm until everything has ended."""
    for _ in range(storm.num_events):
        _strike(cluster, rng, storm)
        choice = _choose(cluster, rng, storm)
        if choice is None:
            cluster.pass_time(0.5)
        else:
            cluster.apply(choice)
        if rng.random() < storm.pass_time:
            cluster.pass_time(rng.random())
    cluster.run_idle()


def _choose(cluster: Cluster, rng: Random, storm: Storm) -> Choice | None:
    choices = cluster.choices()
    fast = [choice for choice in choices if choice[0] not in ("land", "finish", "debris")]
    if fast and rng.random() < storm.slow_writes:
        return rng.choice(fast)
    return rng.choice(choices) if choices else None


def _strike(cluster: Cluster, rng: Random, storm: Storm) -> None:
    balancer = cluster.balancer
    if rng.random() < storm.cancel and balancer.pending():
        balancer.cancel(rng.choice(balancer.pending()))
        cluster.settle()
    if rng.random() < storm.crash:
        node = rng.choice(list(cluster.nodes.values()))
        cluster.restart(node, silent_first=rng.random() < 0.5)
    if rng.random() < storm.fall_silent:
        cluster.fall_silent(rng.choice(list(cluster.nodes.values())))
    writes = [write for write in cluster.writes() if write not in cluster.orphans]
    if rng.random() < storm.fail_write and writes:
        cluster.finish(rng.choice(writes), "link down")
        cluster.settle()
    if rng.random() < storm.corrupt_write and cluster.writes():
        rng.choice(cluster.writes()).corrupt = True
    stepping = [node for node in cluster.nodes.values() if node.plan is not None]
    if rng.random() < storm.fail_step and stepping:
        rng.choice(stepping).fail_step(cluster.now)
        cluster.settle()
    if rng.random() < storm.lose_message:
        _lose_message(cluster, rng)


def _lose_message(cluster: Cluster, rng: Random) -> None:
    me = cluster.balancer.me
    links = [link for ends, link in cluster.links.items() if link and me not in ends]
    if links:
        link = rng.choice(links)
        del link[rng.randrange(len(link))]

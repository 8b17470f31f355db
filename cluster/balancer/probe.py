"""Proves again and again that a request passes over some pair, so that readiness means something."""

import asyncio
import contextlib
import itertools
import time

from bootstrap.sampling import SamplingParams
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.generation import GenerationFailed
from cluster.balancer.instructions import FailureKind
from cluster.balancer.request import RequestSpec
from cluster.balancer.text import TextRules

READY_INTERVAL_S = 5.0
UNREADY_INTERVAL_S = 0.3
TIMEOUT_S = 10.0
NUM_TOKENS = 2  # the prefill worker's one, and one that needed a handoff

_INCONCLUSIVE = (FailureKind.OVERLOADED, FailureKind.DEADLINE, FailureKind.CANCELLED)


async def probe_forever(dispatcher: Dispatcher, prompt: tuple[int, ...]) -> None:
    """Probe at every change of members, often while unready, now and then otherwise.

    Clients' own requests prove the same: while they do, none is sent.
    """
    for number in itertools.count():
        dispatcher.members_changed.clear()
        pools = dispatcher.core.members.pools
        now = time.monotonic()
        proven = not dispatcher.readiness.unproven_reason(pools, now, READY_INTERVAL_S)
        if pools and not proven and not dispatcher.paused:
            await _probe(dispatcher, prompt, number)
        ready = dispatcher.unready_reason() is None
        wait_s = READY_INTERVAL_S if ready else UNREADY_INTERVAL_S
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(dispatcher.members_changed.wait(), wait_s)


async def _probe(dispatcher: Dispatcher, prompt: tuple[int, ...], number: int) -> None:
    sampling = SamplingParams(seed=0, max_tokens=NUM_TOKENS, temperature=0.0)
    spec = RequestSpec(f"probe-{number}", prompt, sampling)
    generation = dispatcher.submit([spec], TextRules(), TIMEOUT_S, counted=False)
    try:
        async for _ in generation.deltas():
            pass
    except GenerationFailed as error:
        conclusive = error.failure.kind not in _INCONCLUSIVE
        dispatcher.readiness.probe_failed(str(error), conclusive=conclusive)

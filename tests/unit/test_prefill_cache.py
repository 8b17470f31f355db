"""The prefill core and its prefix cache: what is reused, and what is named."""

import pytest

from bootstrap.messages import (
    TokenBatch,
)
from engine.core import Received
from engine.step import NumericalFault
from prefill.core import PrefillCore
from prefill.handoffs import (
    BlocksComputed,
    TransferClosed,
)
from tests.support.cores import (
    BALANCER,
    of_type,
    prefill_dispatch,
    prompt,
    room,
    sent,
    step,
)
from tests.support.prefill_rig import abort, core_with, idle, sizes


def finished(core: PrefillCore, number: int) -> None:
    while step(core) is not None:
        pass
    core.handle(TransferClosed(room(number)), 0.0)
    core.drain()


def test_a_cached_prefix_is_reused_and_announced_at_once() -> None:
    core = core_with(prefill_dispatch(1, prompt(10)))
    finished(core, 1)
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(11))), 0.0)
    assert sizes(step(core)) == [(2, 8, 3)]
    out = core.drain()
    assert of_type(out, BlocksComputed) == [BlocksComputed(room(2), 2)]
    (batch,) = sent(out, TokenBatch)
    assert batch.rooms[0].stats is not None
    assert batch.rooms[0].stats.num_cached_tokens == 8


def test_the_last_token_is_always_computed() -> None:
    core = core_with(prefill_dispatch(1, prompt(8)))
    finished(core, 1)
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(8))), 0.0)
    assert sizes(step(core)) == [(2, 4, 4)]


def test_a_prefix_is_shared_with_a_prompt_that_is_still_being_sent() -> None:
    core = core_with(prefill_dispatch(1, prompt(8)), prefill_dispatch(2, prompt(9)))
    step(core)
    assert sizes(step(core)) == [(2, 8, 1)]
    shared = core.ledger.pages_of(room(2))[:2]
    assert shared == core.ledger.pages_of(room(1))
    core.handle(TransferClosed(room(1)), 0.0)
    core.handle(TransferClosed(room(2)), 0.0)
    assert idle(core)


def test_without_prefix_caching_everything_is_computed_again() -> None:
    core = core_with(prefill_dispatch(1, prompt(8)), prefix_caching=False)
    finished(core, 1)
    core.handle(Received(BALANCER, prefill_dispatch(2, prompt(8))), 0.0)
    assert sizes(step(core)) == [(2, 0, 8)]
    assert core.ledger.counts()["cached"] == 0


@pytest.mark.parametrize("how", ["nan", "raised", "aborted"])
def test_a_prompt_that_failed_names_no_block(how: str) -> None:
    core = core_with(prefill_dispatch(1, prompt(8)), prefill_dispatch(2, prompt(9)))
    plan = core.plan(0.0)
    assert plan is not None
    if how == "nan":
        core.complete(plan, [NumericalFault("NaN")], 0.0)
    elif how == "raised":
        core.step_failed(plan, "boom", 0.0)
    else:
        core.complete(plan, [None], 0.0)
        core.handle(abort(1), 0.0)
    core.handle(TransferClosed(room(1)), 0.0)
    assert sizes(step(core))[0] == (2, 0, 8)

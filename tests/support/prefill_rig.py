"""A prefill core with prompts in it, and short words for what it is told and plans."""

from bootstrap.messages import AbortRoom, FailureReason
from engine.core import Received, StepPlan
from prefill.core import PrefillCore
from tests.support.cores import BALANCER, DECODE, limits, prefill_dispatch, prompt, room


def core_with(*dispatches: object, **overrides: object) -> PrefillCore:
    core = PrefillCore(limits(**overrides))
    for dispatch in dispatches:
        core.handle(Received(BALANCER, dispatch), 0.0)
    core.validate()
    return core


def dispatch(number: int, num_tokens: int = 6, **overrides: object):
    """Room `number` with a prompt of its own."""
    return prefill_dispatch(number, prompt(num_tokens, first=10 * number), **overrides)


def abort(number: int, sender=DECODE, reason: FailureReason = FailureReason.CANCELLED) -> Received:
    return Received(sender, AbortRoom(room(number), reason))


def idle(core: PrefillCore) -> bool:
    """Whether no room is left and no page is held."""
    core.validate()
    counts = core.ledger.counts()
    return core.load().num_rooms == 0 and counts["free"] + counts["cached"] == 16


def sizes(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(room number, start, tokens) of each chunk."""
    assert plan is not None
    pairs = zip(plan.rooms, plan.chunks, strict=True)
    return [(int.from_bytes(r, "big"), c.start, len(c.token_ids)) for r, c in pairs]

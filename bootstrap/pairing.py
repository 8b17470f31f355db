"""Which prefill and decode engines may serve together, and why the others may not. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from bootstrap.identity import Role, WorkerRef
from bootstrap.membership import Member, WorkerInfo, WorkerState


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pair that cannot serve; `differences` are lines `field: prefill's != decode's`."""

    prefill: WorkerRef
    decode: WorkerRef
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Every prefill engine with every decode engine, in exactly one of the two."""

    serving: tuple[tuple[Member, Member], ...]
    refusals: tuple[Refusal, ...]


def differences(prefill: WorkerInfo, decode: WorkerInfo) -> tuple[str, ...]:
    """What keeps two engines apart; empty when KV pages of one mean the same to the other."""
    lines = list(prefill.contract.differences(decode.contract))
    for name, mine, theirs in (
        ("model", prefill.model, decode.model),
        ("transfer backend", prefill.transfer.backend, decode.transfer.backend),
    ):
        if mine != theirs:
            lines.append(f"{name}: {mine!r} != {theirs!r}")
    return tuple(lines)


def pairs_of(members: Iterable[Member]) -> Pairing:
    """All pairs among `members`. A draining engine takes no new rooms, so none of its pairs serves."""
    engines = list(members)
    prefills = [m for m in engines if m.info.role is Role.PREFILL]
    decodes = [m for m in engines if m.info.role is Role.DECODE]
    serving, refusals = [], []
    for prefill in prefills:
        for decode in decodes:
            why = differences(prefill.info, decode.info) + _draining(prefill, decode)
            if why:
                refusals.append(Refusal(prefill.info.peer.ref, decode.info.peer.ref, why))
            else:
                serving.append((prefill, decode))
    return Pairing(tuple(serving), tuple(refusals))


def _draining(prefill: Member, decode: Member) -> tuple[str, ...]:
    return tuple(
        f"{member.info.role.value} engine is draining"
        for member in (prefill, decode)
        if member.load.state is WorkerState.DRAINING
    )

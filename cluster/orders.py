"""What an operator may order of a running `up`, and the steps that each order takes. Pure.

Owns the orders and their answers as they pass over the control socket, and the plan of each: groups of
steps, one group after the other, the steps of one group at the same time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

from msgspec import Meta, Struct

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster.settings import MAX_WORKERS_PER_ROLE

ENGINE_ROLES = (Role.PREFILL, Role.DECODE)
MAX_TIMEOUT_S = 86400

_Name = Annotated[str, Meta(min_length=1, max_length=64)]
_Count = Annotated[int, Meta(ge=1, le=MAX_WORKERS_PER_ROLE)]
_Seconds = Annotated[float, Meta(ge=0, le=MAX_TIMEOUT_S)]
_Words = Annotated[str, Meta(max_length=1 << 16)]


class DrainEngine(Struct, frozen=True, tag="drain"):
    """Take one engine out, or replace it; its requests have `timeout_s`, else `up`'s `drain_s`."""

    worker: _Name
    restart: bool = False
    timeout_s: _Seconds | None = None


class ScaleEngines(Struct, frozen=True, tag="scale"):
    """Have so many engines of a role; None leaves a role as it is."""

    prefill: _Count | None = None
    decode: _Count | None = None
    timeout_s: _Seconds | None = None


class RestartEngines(Struct, frozen=True, tag="restart"):
    """Replace engines, one after the other."""

    role: Literal["prefill", "decode", "all"] = "all"
    timeout_s: _Seconds | None = None


Order = DrainEngine | ScaleEngines | RestartEngines


class Refused(Struct, frozen=True, tag="refused"):
    """The order cannot be carried out; nothing was done."""

    why: _Words


class Progress(Struct, frozen=True, tag="progress"):
    """Where an order stands."""

    words: _Words


class Ended(Struct, frozen=True, tag="ended"):
    """What came of an order."""

    done: bool
    words: _Words


Answer = Refused | Progress | Ended


@dataclass(frozen=True, slots=True)
class Add:
    """A new engine serves."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """An engine has left for good."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Another life of an engine serves."""

    worker_id: str


Step = Add | Remove | Renew
Plan = tuple[tuple[Step, ...], ...]
Engines = Mapping[Role, Sequence[str]]  # those that are wanted, oldest first


@dataclass(frozen=True, slots=True)
class Steps:
    """`plan`, or `otherwise` when the first group's engines find no place to run."""

    plan: Plan
    otherwise: Plan = ()


def steps_of(order: Order, engines: Engines) -> Steps:
    """How to carry out an order; raises ConfigError for one that names what is not there."""
    if isinstance(order, DrainEngine):
        _check_known(order.worker, engines)
        step = Renew(order.worker) if order.restart else Remove(order.worker)
        return Steps(((step,),))
    if isinstance(order, ScaleEngines):
        return Steps(_scaling(order, engines))
    roles = ENGINE_ROLES if order.role == "all" else (Role(order.role),)
    lone = [role for role in roles if len(engines[role]) == 1]
    extra = tuple(_new_id(role, engines[role]) for role in lone)
    plan: Plan = tuple((Renew(w),) for role in roles if role not in lone for w in engines[role])
    if not lone:
        return Steps(plan)
    leaving = tuple(engines[role][0] for role in lone)
    replaced = (tuple(map(Add, extra)), tuple(map(Remove, leaving)))
    in_place: Plan = (tuple(map(Remove, extra)), *((Renew(w),) for w in leaving))
    return Steps((*replaced, *plan), (*in_place, *plan))


def _scaling(order: ScaleEngines, engines: Engines) -> Plan:
    """First those that come, so that nobody waits for those that go."""
    coming: list[Step] = []
    leaving: list[Step] = []
    for role, wanted in ((Role.PREFILL, order.prefill), (Role.DECODE, order.decode)):
        present = list(engines[role])
        if wanted is None:
            continue
        leaving += [Remove(worker_id) for worker_id in reversed(present[wanted:])]
        for _ in range(wanted - len(engines[role])):
            present.append(_new_id(role, present))
            coming.append(Add(present[-1]))
    return tuple(tuple(group) for group in (coming, leaving) if group)


def _new_id(role: Role, taken: Sequence[str]) -> str:
    names = (f"{role.value}-{number}" for number in count())
    return next(name for name in names if name not in taken)


def _check_known(worker_id: str, engines: Engines) -> None:
    known = [name for role in ENGINE_ROLES for name in engines[role]]
    if worker_id not in known:
        raise ConfigError(f"worker={worker_id!r}: allowed are {', '.join(known) or 'none'}")

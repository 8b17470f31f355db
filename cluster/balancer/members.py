"""The workers as the balancer knows them: who pairs with whom, who does not, and why."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bootstrap.identity import Role, WorkerRef
from bootstrap.membership import Member, WorkerInfo, WorkerLoad, WorkerState
from bootstrap.pairing import differences
from cluster.balancer.policy import Pair, Pool

MAX_REFUSALS = 64
BALANCER = "balancer"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two who never work together, and the contract fields that say so."""

    prefill: str
    decode: str
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nothing can be served, for people and for programs."""

    message: str
    missing_roles: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class _Kind:
    """Workers between which there is no difference."""

    example: WorkerInfo
    prefills: list[WorkerInfo] = field(default_factory=list)
    decodes: list[WorkerInfo] = field(default_factory=list)

    def side(self, role: Role) -> list[WorkerInfo]:
        return self.prefills if role is Role.PREFILL else self.decodes


def _kind_of(info: WorkerInfo, kinds: list[_Kind]) -> _Kind:
    for kind in kinds:
        if not differences(kind.example, info):
            return kind
    kinds.append(_Kind(info))
    return kinds[-1]


class Members:
    """Pools and refusals always follow from the members; loads change neither unless one drains.

    `tokenizer_digest` is that of the balancer's own tokenizer: a worker with another one would be
    sent ids that mean something else to it.
    """

    def __init__(self, tokenizer_digest: str | None = None) -> None:
        self._tokenizer_digest = tokenizer_digest
        self._members: dict[WorkerRef, Member] = {}
        self._unreachable: frozenset[WorkerRef] = frozenset()
        self.pools: tuple[Pool, ...] = ()
        self.refusals: tuple[Refusal, ...] = ()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def refs(self) -> frozenset[WorkerRef]:
        """Everybody who is a member."""
        return frozenset(self._members)

    def joined(self, member: Member) -> None:
        """A worker registered, or did so again."""
        self._members[member.info.peer.ref] = member
        self._derive()

    def left(self, ref: WorkerRef) -> None:
        """A worker is gone; unknown ones are no error."""
        if self._members.pop(ref, None) is not None:
            self._derive()

    def load(self, ref: WorkerRef, load: WorkerLoad) -> None:
        """A worker's latest load."""
        known = self._members.get(ref)
        if known is not None:
            self._members[ref] = Member(known.info, load)
            if known.load.state is not load.state:
                self._derive()

    def cannot_reach(self, refs: frozenset[WorkerRef]) -> None:
        """These do not answer the balancer, members or not; all others do."""
        if refs != self._unreachable:
            self._unreachable = refs
            self._derive()

    def pairs(self) -> list[Pair]:
        """Every pair that can serve."""
        return [Pair(p, d) for pool in self.pools for p in pool.prefills for d in pool.decodes]

    def unready_reason(self) -> Reason | None:
        """Why no pair can serve, or None when one can."""
        if self.pools:
            return None
        by_role = {role: self._ready(role) for role in (Role.PREFILL, Role.DECODE)}
        missing = tuple(role.value for role, infos in by_role.items() if not infos)
        if missing:
            return Reason(f"no ready {' and no ready '.join(missing)} worker", missing)
        fields = sorted({line.partition(":")[0] for r in self.refusals for line in r.differences})
        message = f"no prefill and decode worker agree: {', '.join(fields)} differ"
        return Reason(message, refusals=self.refusals)

    def _ready(self, role: Role) -> list[WorkerInfo]:
        return [
            member.info
            for member in self._members.values()
            if member.info.role is role
            and member.load.state is WorkerState.READY
            and member.info.peer.ref not in self._unreachable
        ]

    def _derive(self) -> None:
        refusals: list[Refusal] = []
        kinds: list[_Kind] = []
        for role in (Role.PREFILL, Role.DECODE):
            for info in sorted(self._ready(role), key=lambda info: info.peer.ref):
                if self._speaks_our_tokens(info, refusals):
                    _kind_of(info, kinds).side(role).append(info)
        self.pools = tuple(
            Pool(kind.example.contract, tuple(kind.prefills), tuple(kind.decodes))
            for kind in kinds
            if kind.prefills and kind.decodes
        )
        for ours in kinds:
            for theirs in kinds:
                why = differences(ours.example, theirs.example)
                if why:
                    refusals += [
                        Refusal(str(p.peer.ref), str(d.peer.ref), why)
                        for p in ours.prefills[:MAX_REFUSALS]
                        for d in theirs.decodes[:MAX_REFUSALS]
                    ]
        self.refusals = tuple(refusals[:MAX_REFUSALS])

    def _speaks_our_tokens(self, info: WorkerInfo, refusals: list[Refusal]) -> bool:
        theirs, ours = info.contract.tokenizer_digest, self._tokenizer_digest
        if ours is None or theirs == ours:
            return True
        differences = (f"tokenizer_digest: {theirs!r} != {ours!r}",)
        name = str(info.peer.ref)
        if info.role is Role.PREFILL:
            refusals.append(Refusal(name, BALANCER, differences))
        else:
            refusals.append(Refusal(BALANCER, name, differences))
        return False

"""A subscriber's copy of the registry, and what changed in it.

Pure: the service's messages and the time go in, events come out. A service that restarts begins a
new life and knows nobody at first: members stay until they had a grace time to register again.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from bootstrap.identity import Peer, WorkerRef
from bootstrap.membership import (
    AnyMember,
    BalancerMember,
    Ended,
    LeaveReason,
    LoadReport,
    Member,
    MemberJoined,
    MemberLeft,
    Snapshot,
    Subscribe,
    Subscribed,
    WorkerLoad,
)
from bootstrap.messages import Message
from bootstrap.snapshots import SnapshotParts

MIN_GRACE_S = 2.5  # a member needs a reconnect, a heartbeat and a registration to be back
MAX_REMEMBERED = 1 << 14

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Joined:
    """A new engine, or one that registered with other facts."""

    member: Member


@dataclass(frozen=True, slots=True)
class BalancerJoined:
    """A new load balancer, or one that registered with other facts."""

    member: BalancerMember


@dataclass(frozen=True, slots=True)
class Left:
    """An engine or balancer is gone. May come again: first as silent or replaced, later as dead."""

    peer: Peer
    reason: LeaveReason

    @property
    def ref(self) -> WorkerRef:
        """Which incarnation."""
        return self.peer.ref

    @property
    def endpoint(self) -> str:
        """Where its inbox listened."""
        return self.peer.endpoint

    @property
    def dead(self) -> bool:
        """Whether it is known to write nothing any more."""
        return self.reason.dead


@dataclass(frozen=True, slots=True)
class LoadsChanged:
    """Members' newer loads."""

    loads: tuple[tuple[WorkerRef, WorkerLoad], ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """The cluster counts our own incarnation as ended; it must stop serving."""

    reason: LeaveReason


DirectoryEvent = Joined | BalancerJoined | Left | LoadsChanged | Fenced


class Directory:
    """At most one incarnation per worker id; one that ended never returns.

    Changes apply in the order of their versions; after a gap nothing applies until a snapshot.
    """

    def __init__(self) -> None:
        self.needs_snapshot = True
        self._service: WorkerRef | None = None
        self._version = 0
        self._grace_s = MIN_GRACE_S
        self._parts = SnapshotParts()
        self._members: dict[str, AnyMember] = {}  # by worker id
        self._unconfirmed: dict[WorkerRef, float] = {}  # not heard of in this life; until when
        self._silent: dict[WorkerRef, Peer] = {}  # left, not known dead; oldest first
        self._replaced: dict[WorkerRef, Peer] = {}  # never return, not known dead; oldest first
        self._ended: dict[WorkerRef, None] = {}  # never return; oldest first
        self._past_lives: dict[WorkerRef, None] = {}  # oldest first

    @property
    def members(self) -> tuple[Member, ...]:
        """All engines with their latest loads."""
        return tuple(m for m in self._members.values() if isinstance(m, Member))

    @property
    def balancers(self) -> tuple[BalancerMember, ...]:
        """All load balancers with their latest loads."""
        return tuple(m for m in self._members.values() if isinstance(m, BalancerMember))

    def subscription(self, loads: bool = True) -> Subscribe:
        """What to ask the service for now."""
        if self.needs_snapshot:
            return Subscribe(loads=loads)
        return Subscribe(self._service, self._version, loads)

    def apply(self, service: WorkerRef, message: Message, now: float) -> list[DirectoryEvent]:
        """Take in one message that the service's life `service` sent."""
        if service in self._past_lives:
            return []
        if isinstance(message, Ended):
            return [Fenced(message.reason)]
        if isinstance(message, Snapshot):
            return self._snapshot(message, now) if message.service == service else []
        if service != self._service:
            self.needs_snapshot = True
            return []
        if isinstance(message, Subscribed):
            self._grace_s = max(message.lease_s, MIN_GRACE_S)
            self.needs_snapshot |= message.version != self._version
        elif isinstance(message, LoadReport):
            return self._loads(message)
        elif isinstance(message, MemberJoined) and self._is_next(message.version):
            return self._join(message.member)
        elif isinstance(message, MemberLeft) and self._is_next(message.version):
            return self._leave(message.ref, message.reason)
        return []

    def tick(self, now: float) -> list[DirectoryEvent]:
        """Drop members whose grace is over. Call while the service is heard."""
        if self.needs_snapshot:
            return []
        late = [ref for ref, until in self._unconfirmed.items() if now >= until]
        return [event for ref in late for event in self._leave(ref, LeaveReason.NOT_ANNOUNCED)]

    def validate(self) -> None:
        """Assert what must hold between messages."""
        refs = {member.info.peer.ref for member in self._members.values()}
        assert all(m.info.peer.ref.worker_id == key for key, m in self._members.items())
        assert not refs & self._ended.keys(), "an ended member"
        assert not refs & self._silent.keys(), "a member that left"
        assert self._unconfirmed.keys() <= refs, "waiting for no member"
        assert self._service not in self._past_lives, "a past life is present"

    # --- inner ---------------------------------------------------------------------------------

    def _is_next(self, version: int) -> bool:
        if self.needs_snapshot or version <= self._version:
            return False
        if version > self._version + 1:
            self.needs_snapshot = True
            return False
        self._version = version
        return True

    def _snapshot(self, message: Snapshot, now: float) -> list[DirectoryEvent]:
        if message.service == self._service and message.version < self._version:
            return []
        whole = self._parts.add(message)
        if whole is None:
            return []
        present = {m.info.peer.ref for m in whole.members}
        known = [m.info.peer.ref for m in self._members.values()]
        absent = [ref for ref in known if ref not in present]
        if whole.service != self._service:
            if self._service is not None:
                _remember(self._past_lives, self._service, None)
            self._service = whole.service
            self._unconfirmed = dict.fromkeys(absent, now + self._grace_s)
        self._version, self.needs_snapshot = whole.version, False
        events: list[DirectoryEvent] = []
        for ref, reason in whole.ended:
            if ref not in self._ended or ref in self._replaced:
                events += self._leave(ref, reason)
        for member in whole.members:
            events += self._join(member)
        for ref in absent:
            if self._is_member(ref) and ref not in self._unconfirmed:
                events += self._leave(ref, LeaveReason.NOT_ANNOUNCED)
        return events

    def _is_member(self, ref: WorkerRef) -> bool:
        member = self._members.get(ref.worker_id)
        return member is not None and member.info.peer.ref == ref

    def _join(self, member: AnyMember) -> list[DirectoryEvent]:
        ref = member.info.peer.ref
        if ref in self._ended:  # a new life of the service does not know that yet
            return []
        events: list[DirectoryEvent] = []
        old = self._members.get(ref.worker_id)
        if old is not None and old.info.peer.ref != ref:
            events += self._leave(old.info.peer.ref, LeaveReason.REPLACED)
        self._silent.pop(ref, None)
        for gone in [r for r in self._silent if r.worker_id == ref.worker_id]:
            events += self._leave(gone, LeaveReason.REPLACED)
        self._unconfirmed.pop(ref, None)
        self._members[ref.worker_id] = member
        if old is None or old.info != member.info:
            events.append(Joined(member) if isinstance(member, Member) else BalancerJoined(member))
        return events

    def _leave(self, ref: WorkerRef, reason: LeaveReason) -> list[DirectoryEvent]:
        self._unconfirmed.pop(ref, None)
        if ref in self._replaced and not reason.dead:
            return []
        peer = self._silent.pop(ref, None) or self._replaced.pop(ref, None)
        if self._is_member(ref):
            peer = self._members.pop(ref.worker_id).info.peer
        if reason.final:
            _remember(self._ended, ref, None)
        if peer is not None and not reason.dead:
            _remember(self._replaced if reason.final else self._silent, ref, peer)
        return [] if peer is None else [Left(peer, reason)]

    def _loads(self, message: LoadReport) -> list[DirectoryEvent]:
        known = tuple((ref, load) for ref, load in message.loads if self._is_member(ref))
        for ref, load in known:
            member = self._members[ref.worker_id]
            self._members[ref.worker_id] = msgspec.structs.replace(member, load=load)
        return [LoadsChanged(known)] if known else []


def _remember(memory: dict[WorkerRef, _V], ref: WorkerRef, value: _V) -> None:
    memory[ref] = value
    if len(memory) > MAX_REMEMBERED:
        del memory[next(iter(memory))]

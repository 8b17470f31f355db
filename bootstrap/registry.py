"""Who is a member of the cluster: leases, incarnations, versions, subscriptions.

Pure: events and the time go in, messages to send come out. All of it is soft state: a service that
restarts knows nobody, tells so by a new life of its own, and hears everything again from heartbeats.
"""

from dataclasses import dataclass
from itertools import islice

from bootstrap.identity import WorkerRef
from bootstrap.membership import (
    AnyMember,
    BalancerInfo,
    BalancerMember,
    Ended,
    LeaveReason,
    LoadReport,
    Member,
    MemberJoined,
    MemberLeft,
    Register,
    RegisterAgain,
    Registered,
    Snapshot,
    Subscribe,
    Subscribed,
    WorkerInfo,
    WorkerLoad,
)
from bootstrap.messages import Message
from bootstrap.snapshots import split

MAX_MEMBERS = 1 << 14
MAX_SUBSCRIBERS = 1 << 14
MAX_TOMBSTONES = 1 << 16
REPORT_INTERVAL_S = 0.25
ENDED_PER_SNAPSHOT = 1000
LOADS_PER_REPORT = 500  # keeps a report of the largest possible loads within a frame


@dataclass(frozen=True, slots=True)
class Send:
    """One message to one member, subscriber or sender."""

    to: WorkerRef
    message: Message


@dataclass(slots=True)
class _Entry:
    info: WorkerInfo | BalancerInfo
    load: WorkerLoad
    started_at: float  # by the registry's clock
    expires_at: float

    @property
    def member(self) -> AnyMember:
        if isinstance(self.info, WorkerInfo):
            return Member(self.info, self.load)
        return BalancerMember(self.info, self.load)


@dataclass(frozen=True, slots=True)
class _Subscription:
    expires_at: float
    loads: bool


class Registry:
    """One incarnation per worker id, the youngest; each change raises `version` by one.

    An incarnation that was replaced, was evicted or said goodbye stays ended. One whose lease ran
    out may come back: it was silent, not seen dead. That one which was replaced has died is news too.
    """

    def __init__(self, service: WorkerRef, lease_s: float) -> None:
        self.service = service
        self.lease_s = lease_s
        self.version = 0
        self.num_refused = 0  # registrations and subscriptions beyond the limits
        self._entries: dict[str, _Entry] = {}  # by worker id
        self._subscribers: dict[WorkerRef, _Subscription] = {}
        self._tombstones: dict[WorkerRef, LeaveReason] = {}  # oldest first
        self._heard: dict[WorkerRef, None] = {}  # loads not reported yet
        self._next_report_at = float("-inf")
        self._ticked_at: float | None = None

    @property
    def members(self) -> tuple[AnyMember, ...]:
        """All members with their latest loads."""
        return tuple(entry.member for entry in self._entries.values())

    @property
    def num_subscribers(self) -> int:
        """Subscriptions whose lease runs."""
        return len(self._subscribers)

    def knows(self, ref: WorkerRef) -> bool:
        """Whether `ref` is a member or a subscriber."""
        return self._entry(ref) is not None or ref in self._subscribers

    # --- events --------------------------------------------------------------------------------

    def register(self, message: Register, now: float) -> list[Send]:
        """An engine or balancer joins, renews or changes its registration."""
        info, started_at = message.info, now - message.age_s
        ref = info.peer.ref
        if ref in self._tombstones:
            return [Send(ref, Ended(self._tombstones[ref]))]
        present = self._entries.get(ref.worker_id)
        if present is None and len(self._entries) >= MAX_MEMBERS:
            self.num_refused += 1
            return []
        sends: list[Send] = []
        if present is not None and present.info.peer.ref != ref:
            if started_at < present.started_at:  # a replaced process that outlived the old service
                self._bury(ref, LeaveReason.REPLACED)
                return [Send(ref, Ended(LeaveReason.REPLACED))]
            sends += self._remove(present.info.peer.ref, LeaveReason.REPLACED)
            present = None
        if present is None:
            present = _Entry(info, message.load, started_at, now)
            self._entries[ref.worker_id] = present
            sends += self._joined(present)
        elif present.info != info:
            present.info = info
            sends += self._joined(present)
        present.expires_at = now + self.lease_s
        return [Send(ref, Registered(self.lease_s)), *sends]

    def heartbeat(self, ref: WorkerRef, load: WorkerLoad, now: float) -> list[Send]:
        """Renew a member's lease. A change of state is reported at once, the rest on ticks."""
        entry = self._entry(ref)
        if entry is None:
            ended = self._tombstones.get(ref)
            return [Send(ref, RegisterAgain() if ended is None else Ended(ended))]
        changed_state = load.state is not entry.load.state
        entry.load, entry.expires_at = load, now + self.lease_s
        self._heard[ref] = None
        return self._report(now) if changed_state else []

    def unregister(self, ref: WorkerRef) -> list[Send]:
        """A member leaves; its subscription ends too."""
        self._subscribers.pop(ref, None)
        return self._end(ref, LeaveReason.UNREGISTERED)

    def evict(self, ref: WorkerRef) -> list[Send]:
        """A supervisor saw the process end. Told also of one whose lease had run out before."""
        self._subscribers.pop(ref, None)
        return self._end(ref, LeaveReason.EVICTED)

    def subscribe(self, ref: WorkerRef, message: Subscribe, now: float) -> list[Send]:
        """Begin or renew a subscription; what the subscriber missed comes as a snapshot."""
        if ref in self._tombstones:
            return [Send(ref, Ended(self._tombstones[ref]))]
        if ref not in self._subscribers and len(self._subscribers) >= MAX_SUBSCRIBERS:
            self.num_refused += 1
            return []
        self._subscribers[ref] = _Subscription(now + self.lease_s, message.loads)
        answer: list[Message] = []
        if (message.service, message.version) != (self.service, self.version):
            answer += self._snapshot()
        answer.append(Subscribed(self.version, self.lease_s))
        return [Send(ref, part) for part in answer]

    def tick(self, now: float) -> list[Send]:
        """Expire leases and report loads; call at least four times per lease.

        A gap since the last tick is this process's own pause, and the heartbeats that came meanwhile
        may lie unread: no lease runs during it.
        """
        paused_s = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        if paused_s > self.lease_s / 2:
            self._extend(paused_s)
        for ref in [r for r, s in self._subscribers.items() if now >= s.expires_at]:
            del self._subscribers[ref]
        sends: list[Send] = []
        for entry in [e for e in self._entries.values() if now >= e.expires_at]:
            sends += self._remove(entry.info.peer.ref, LeaveReason.LEASE_EXPIRED)
        if now >= self._next_report_at:
            sends += self._report(now)
        return sends

    def validate(self) -> None:
        """Assert what must hold between events."""
        for worker_id, entry in self._entries.items():
            ref = entry.info.peer.ref
            assert ref.worker_id == worker_id, f"{ref} under {worker_id}"
            assert ref not in self._tombstones, f"{ref} ended and is a member"
        assert not self._tombstones.keys() & self._subscribers.keys(), "an ended subscriber"
        assert all(self._entry(ref) is not None for ref in self._heard), "a stranger's load"
        assert len(self._entries) <= MAX_MEMBERS
        assert len(self._subscribers) <= MAX_SUBSCRIBERS
        assert len(self._tombstones) <= MAX_TOMBSTONES
        assert not any(reason is LeaveReason.LEASE_EXPIRED for reason in self._tombstones.values())

    # --- inner ---------------------------------------------------------------------------------

    def _entry(self, ref: WorkerRef) -> _Entry | None:
        entry = self._entries.get(ref.worker_id)
        return entry if entry is not None and entry.info.peer.ref == ref else None

    def _joined(self, entry: _Entry) -> list[Send]:
        self.version += 1
        return self._push(MemberJoined(self.version, entry.member))

    def _end(self, ref: WorkerRef, reason: LeaveReason) -> list[Send]:
        if self._tombstones.get(ref, LeaveReason.REPLACED).dead:
            return []
        return self._remove(ref, reason)

    def _remove(self, ref: WorkerRef, reason: LeaveReason) -> list[Send]:
        if self._entry(ref) is not None:
            del self._entries[ref.worker_id]
            self._heard.pop(ref, None)
        if reason.final:
            self._bury(ref, reason)
        self.version += 1
        return self._push(MemberLeft(self.version, ref, reason))

    def _bury(self, ref: WorkerRef, reason: LeaveReason) -> None:
        self._subscribers.pop(ref, None)
        self._tombstones.pop(ref, None)
        self._tombstones[ref] = reason
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def _push(self, message: Message) -> list[Send]:
        return [Send(ref, message) for ref in self._subscribers]

    def _snapshot(self) -> list[Snapshot]:
        lately = tuple(islice(reversed(self._tombstones.items()), ENDED_PER_SNAPSHOT))
        return split(Snapshot(self.service, self.version, self.members, ended=lately))

    def _report(self, now: float) -> list[Send]:
        loads = [(ref, self._entries[ref.worker_id].load) for ref in self._heard]
        self._heard.clear()
        self._next_report_at = now + REPORT_INTERVAL_S
        chunks = [loads[i : i + LOADS_PER_REPORT] for i in range(0, len(loads), LOADS_PER_REPORT)]
        listeners = [ref for ref, subscription in self._subscribers.items() if subscription.loads]
        return [Send(ref, LoadReport(tuple(chunk))) for chunk in chunks for ref in listeners]

    def _extend(self, by_s: float) -> None:
        for ref, subscription in self._subscribers.items():
            later = _Subscription(subscription.expires_at + by_s, subscription.loads)
            self._subscribers[ref] = later
        for entry in self._entries.values():
            entry.expires_at += by_s

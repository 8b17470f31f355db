"""The directory: a subscriber's copy stays true through gaps, restarts and replacements."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.directory import (
    MIN_GRACE_S,
    Directory,
    DirectoryEvent,
    Fenced,
    Joined,
    Left,
    LoadsChanged,
)
from bootstrap.identity import WorkerRef
from bootstrap.membership import (
    Ended,
    LeaveReason,
    LoadReport,
    Member,
    MemberJoined,
    MemberLeft,
    Register,
    Snapshot,
    Subscribe,
    Subscribed,
    WorkerInfo,
    WorkerLoad,
)
from bootstrap.registry import Registry, Send
from tests.support.bootstrap_facts import make_info, make_peer, make_ref

FIRST, SECOND = make_ref("bootstrap", 1), make_ref("bootstrap", 2)
OLD, NEW, OTHER = make_ref("p0", 1), make_ref("p0", 2), make_ref("d0", 1)


def member(ref: WorkerRef, load: WorkerLoad | None = None) -> Member:
    """A member that is `ref`."""
    return Member(make_info(make_peer(ref)), load or WorkerLoad())


def joined(ref: WorkerRef) -> Joined:
    """The event of `ref`'s arrival."""
    return Joined(member(ref))


def left(ref: WorkerRef, reason: LeaveReason) -> Left:
    """The event of `ref`'s end."""
    return Left(make_peer(ref), reason)


def snapshot(service: WorkerRef, version: int, *refs: WorkerRef) -> Snapshot:
    """A whole snapshot."""
    return Snapshot(service, version, tuple(member(ref) for ref in refs))


def refs(directory: Directory) -> set[WorkerRef]:
    """Who is a member."""
    return {m.info.peer.ref for m in directory.members}


def directory_with(*members: WorkerRef) -> Directory:
    """A directory at version 1 of the service's first life."""
    directory = Directory()
    directory.apply(FIRST, snapshot(FIRST, 1, *members), 0.0)
    return directory


def test_changes_apply_in_order_and_a_gap_asks_for_a_snapshot() -> None:
    directory = directory_with()
    assert directory.subscription() == Subscribe(FIRST, 1)
    assert directory.apply(FIRST, MemberJoined(2, member(OLD)), 0.0) == [joined(OLD)]
    assert directory.apply(FIRST, MemberJoined(2, member(OTHER)), 0.0) == []
    assert directory.apply(FIRST, MemberJoined(4, member(OTHER)), 0.0) == []
    assert directory.subscription() == Subscribe()
    assert directory.apply(FIRST, MemberLeft(3, OLD, LeaveReason.EVICTED), 0.0) == []
    assert directory.apply(FIRST, snapshot(FIRST, 4, OLD, OTHER), 0.0) == [joined(OTHER)]
    assert directory.subscription() == Subscribe(FIRST, 4)


def test_a_lost_last_change_shows_in_the_next_renewal() -> None:
    directory = directory_with(OLD)
    directory.apply(FIRST, Subscribed(1, 2.0), 0.0)
    assert not directory.needs_snapshot
    directory.apply(FIRST, Subscribed(2, 2.0), 0.0)
    assert directory.needs_snapshot
    events = directory.apply(FIRST, snapshot(FIRST, 2), 0.0)
    assert events == [left(OLD, LeaveReason.NOT_ANNOUNCED)]


def test_silent_worker_is_reported_again_when_known_dead() -> None:
    directory = directory_with(OLD)
    silent = directory.apply(FIRST, MemberLeft(2, OLD, LeaveReason.LEASE_EXPIRED), 0.0)
    assert silent == [left(OLD, LeaveReason.LEASE_EXPIRED)]
    assert not left(OLD, LeaveReason.LEASE_EXPIRED).dead
    dead = directory.apply(FIRST, MemberLeft(3, OLD, LeaveReason.EVICTED), 0.0)
    assert dead == [left(OLD, LeaveReason.EVICTED)]
    assert left(OLD, LeaveReason.EVICTED).dead


def test_replacement_of_a_silent_worker_reports_it_dead_first() -> None:
    directory = directory_with(OLD)
    directory.apply(FIRST, MemberLeft(2, OLD, LeaveReason.LEASE_EXPIRED), 0.0)
    events = directory.apply(FIRST, MemberJoined(3, member(NEW)), 0.0)
    assert events == [left(OLD, LeaveReason.REPLACED), joined(NEW)]


def test_replaced_worker_is_reported_again_when_known_dead() -> None:
    directory = directory_with(OLD)
    events = directory.apply(FIRST, MemberJoined(2, member(NEW)), 0.0)
    assert events == [left(OLD, LeaveReason.REPLACED), joined(NEW)]
    assert not left(OLD, LeaveReason.REPLACED).dead, "it may be stopped, and write when it wakes"
    assert directory.apply(FIRST, MemberLeft(3, OLD, LeaveReason.REPLACED), 0.0) == []
    missed = Snapshot(FIRST, 5, (member(NEW),), ended=((OLD, LeaveReason.EVICTED),))
    assert directory.apply(FIRST, missed, 0.0) == [left(OLD, LeaveReason.EVICTED)]
    assert directory.apply(FIRST, MemberLeft(6, OLD, LeaveReason.EVICTED), 0.0) == []


def test_deaths_that_were_missed_come_with_the_snapshot() -> None:
    directory = directory_with(OLD, OTHER)
    directory.apply(FIRST, MemberLeft(2, OTHER, LeaveReason.LEASE_EXPIRED), 0.0)
    ended = ((OLD, LeaveReason.EVICTED), (OTHER, LeaveReason.EVICTED), (NEW, LeaveReason.EVICTED))
    missed = Snapshot(SECOND, 3, (), ended=ended)
    assert directory.apply(SECOND, missed, 0.0) == [
        left(OLD, LeaveReason.EVICTED),
        left(OTHER, LeaveReason.EVICTED),
    ]
    assert directory.apply(SECOND, missed, 0.0) == []


def test_silent_worker_may_come_back() -> None:
    directory = directory_with(OLD)
    directory.apply(FIRST, MemberLeft(2, OLD, LeaveReason.LEASE_EXPIRED), 0.0)
    assert directory.apply(FIRST, MemberJoined(3, member(OLD)), 0.0) == [joined(OLD)]


def test_service_restart_keeps_members_until_the_grace_is_over() -> None:
    directory = directory_with(OLD, OTHER)
    assert directory.apply(SECOND, Subscribed(0, 2.0), 10.0) == []
    assert directory.needs_snapshot
    assert directory.apply(SECOND, snapshot(SECOND, 0), 10.0) == []
    assert refs(directory) == {OLD, OTHER}
    assert directory.apply(SECOND, MemberJoined(1, member(OLD)), 10.5) == []
    assert directory.tick(10.0 + MIN_GRACE_S / 2) == []
    late = directory.tick(10.0 + MIN_GRACE_S)
    assert late == [left(OTHER, LeaveReason.NOT_ANNOUNCED)]
    assert directory.tick(99.0) == []
    assert refs(directory) == {OLD}


def test_longer_leases_grant_longer_grace() -> None:
    directory = directory_with(OLD)
    directory.apply(FIRST, Subscribed(1, 60.0), 0.0)
    directory.apply(SECOND, snapshot(SECOND, 0), 10.0)
    assert directory.tick(69.0) == []
    assert directory.tick(70.0) == [left(OLD, LeaveReason.NOT_ANNOUNCED)]


def test_grace_survives_a_second_snapshot_of_the_new_life() -> None:
    directory = directory_with(OLD, OTHER)
    directory.apply(SECOND, snapshot(SECOND, 0), 10.0)
    assert directory.apply(SECOND, snapshot(SECOND, 3, OTHER), 10.2) == []
    assert refs(directory) == {OLD, OTHER}


def test_grace_does_not_end_before_a_known_gap_is_filled() -> None:
    directory = directory_with(OLD)
    directory.apply(SECOND, snapshot(SECOND, 0), 10.0)
    directory.apply(SECOND, Subscribed(1, 2.0), 20.0)
    assert directory.tick(20.0) == []
    assert directory.apply(SECOND, snapshot(SECOND, 1, OLD), 20.1) == []
    assert directory.tick(20.2) == []


def test_past_lives_of_the_service_are_ignored() -> None:
    directory = directory_with(OLD)
    directory.apply(SECOND, snapshot(SECOND, 0, OLD), 1.0)
    assert directory.apply(FIRST, MemberLeft(2, OLD, LeaveReason.EVICTED), 1.0) == []
    assert directory.apply(FIRST, snapshot(FIRST, 9), 1.0) == []
    assert directory.apply(FIRST, Ended(LeaveReason.EVICTED), 1.0) == []
    assert refs(directory) == {OLD}
    assert not directory.needs_snapshot


def test_dead_incarnation_does_not_return_in_a_new_life() -> None:
    directory = directory_with(OLD)
    directory.apply(FIRST, MemberJoined(2, member(NEW)), 0.0)
    assert directory.apply(SECOND, snapshot(SECOND, 1, OLD), 1.0) == []
    assert refs(directory) == {NEW}
    events = directory.apply(SECOND, MemberLeft(2, OLD, LeaveReason.REPLACED), 1.1)
    assert events + directory.apply(SECOND, MemberJoined(3, member(NEW)), 1.1) == []


def test_snapshot_in_parts_applies_once_whole() -> None:
    directory = directory_with()
    parts = [Snapshot(FIRST, 5, (member(ref),), i, 2) for i, ref in enumerate((OLD, OTHER))]
    directory.apply(FIRST, Subscribed(5, 2.0), 0.0)
    assert directory.apply(FIRST, parts[1], 0.0) == []
    assert directory.needs_snapshot
    assert directory.apply(FIRST, parts[0], 0.0) == [joined(OLD), joined(OTHER)]


def test_loads_change_members_only() -> None:
    directory, busy = directory_with(OLD), WorkerLoad(num_running=2)
    report = LoadReport(((OLD, busy), (OTHER, busy), (NEW, busy)))
    assert directory.apply(FIRST, report, 0.0) == [LoadsChanged(((OLD, busy),))]
    assert directory.members == (member(OLD, busy),)


def test_own_end_is_told() -> None:
    assert Directory().apply(FIRST, Ended(LeaveReason.REPLACED), 0.0) == [
        Fenced(LeaveReason.REPLACED)
    ]


ME = make_ref("listener", 99)
STEP_S = 0.2
LEASE_S = 2.0
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "heartbeat", "unregister", "evict", "restart", "wait"]),
        st.builds(make_ref, st.sampled_from(["a", "b", "c"]), st.integers(0, 3)),
        st.booleans(),  # whether what the registry pushes is lost
        st.booleans(),  # whether the subscriber renews after it
    ),
    max_size=80,
)


class World:
    """One registry after another, one subscriber, and a lossy line from the one to the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_lives = 0
        self.born_at: dict[WorkerRef, float] = {}
        self.directory = Directory()
        self.known: dict[WorkerRef, WorkerInfo] = {}  # what events say who is a member
        self.dead: set[WorkerRef] = set()  # by events
        self.registry = Registry(make_ref("bootstrap", 0), LEASE_S)

    def restart(self) -> None:
        """The service's next life."""
        self.num_lives += 1
        self.registry = Registry(make_ref("bootstrap", self.num_lives), LEASE_S)

    def deliver(self, sends: list[Send]) -> None:
        """Everything for the subscriber arrives."""
        for send in sends:
            if send.to == ME:
                self.note(self.directory.apply(self.registry.service, send.message, self.now))
                self.directory.validate()

    def note(self, events: list[DirectoryEvent]) -> None:
        """Events alone must tell who is a member."""
        for event in events:
            if isinstance(event, Joined):
                ref = event.member.info.peer.ref
                assert ref not in self.dead, f"{ref} came back from the dead"
                self.known[ref] = event.member.info
            elif isinstance(event, Left):
                self.known.pop(event.ref, None)
                if event.dead:
                    self.dead.add(event.ref)
        assert set(self.known) == refs(self.directory)

    def renew(self) -> None:
        """The subscriber's beat."""
        subscription = self.directory.subscription()
        self.deliver(self.registry.subscribe(ME, subscription, self.now))

    def step(self, kind: str, ref: WorkerRef) -> list[Send]:
        """One random event."""
        self.now += STEP_S
        sends = self.registry.tick(self.now)
        if kind == "register":
            age_s = self.now - self.born_at.setdefault(ref, self.now)
            sends += self.registry.register(Register(make_info(make_peer(ref)), age_s), self.now)
        elif kind == "heartbeat":
            sends += self.registry.heartbeat(ref, WorkerLoad(num_queued=1), self.now)
        elif kind == "unregister":
            sends += self.registry.unregister(ref)
        elif kind == "evict":
            sends += self.registry.evict(ref)
        elif kind == "restart":
            self.restart()
            sends = []
        return sends


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_directory_equals_the_registry_again_after_any_losses(
    steps: list[tuple[str, WorkerRef, bool, bool]],
) -> None:
    world = World()
    for kind, ref, lost, renews in steps:
        sends = world.step(kind, ref)
        if not lost:
            world.deliver(sends)
        if renews:
            world.renew()
    world.renew()
    world.renew()
    graced = world.now + MIN_GRACE_S
    world.note(world.directory.tick(graced))
    of_registry = {m.info.peer.ref for m in world.registry.members}
    assert refs(world.directory) <= of_registry
    # A new life of the service may not know yet who ended, or was replaced, in an earlier one; whom the
    # directory misses it knows as dead.
    assert of_registry - refs(world.directory) <= world.directory._ended.keys()

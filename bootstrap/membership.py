"""Messages about who is there: registrations, leases, joins, leaves and loads."""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct, field

from bootstrap.contract import KVContract
from bootstrap.fields import MAX_ROOMS, Gauge, MessageBase, Seconds, Text
from bootstrap.identity import Peer, Role, WorkerRef


class TransferMetadata(Struct, frozen=True):
    """How to write into a worker's arena. `blob` is the backend's own connection data."""

    backend: Annotated[str, Meta(max_length=32)]
    transport: Annotated[str, Meta(max_length=64)]
    agent_name: Annotated[str, Meta(max_length=128)]
    base_address: Annotated[int, Meta(ge=0)]
    num_bytes: Gauge
    blob: Annotated[bytes, Meta(max_length=1 << 20)]


class WorkerLimits(Struct, frozen=True):
    """What a worker can ever take; requests beyond it are refused before dispatch.

    `max_num_batched_tokens` is what a prefill worker computes in one step; 0 when it does not say.
    """

    max_model_len: Gauge
    num_blocks: Gauge
    max_num_seqs: Gauge
    max_queue: Gauge
    max_num_batched_tokens: Gauge = 0


class WorkerInfo(Struct, frozen=True, tag="worker"):
    """An engine's registration."""

    peer: Peer
    role: Role
    model: Text
    contract: KVContract
    limits: WorkerLimits
    transfer: TransferMetadata
    host: Text = ""
    pid: Gauge = 0


class BalancerInfo(Struct, frozen=True, tag="balancer"):
    """A load balancer's registration: engines end its rooms when it is a member no more.

    `url` is where its clients connect. It holds no pages, so there is nothing to pair it by.
    """

    peer: Peer
    model: Text
    url: Text
    host: Text = ""
    pid: Gauge = 0


class WorkerState(Enum):
    """A member as the cluster sees it."""

    READY = "ready"
    DRAINING = "draining"


class WorkerLoad(Struct, frozen=True, omit_defaults=True):
    """What a member says of itself in each heartbeat. `pages` counts pages by ledger state."""

    state: WorkerState = WorkerState.READY
    num_queued: Gauge = 0
    num_running: Gauge = 0
    num_rooms: Gauge = 0
    pages: Annotated[dict[Annotated[str, Meta(max_length=32)], Gauge], Meta(max_length=16)] = {}
    counters: Annotated[dict[Annotated[str, Meta(max_length=64)], Gauge], Meta(max_length=64)] = {}


class LeaveReason(Enum):
    """Why an incarnation is no member any more."""

    LEASE_EXPIRED = "lease_expired"  # nothing heard: dead, stopped or out of reach
    NOT_ANNOUNCED = "not_announced"  # the service restarted and did not hear from it in time
    UNREGISTERED = "unregistered"  # said goodbye after its last write
    EVICTED = "evicted"  # a supervisor saw the process end
    REPLACED = "replaced"  # a younger incarnation took its place

    @property
    def final(self) -> bool:
        """Whether this incarnation never returns."""
        return self not in (LeaveReason.LEASE_EXPIRED, LeaveReason.NOT_ANNOUNCED)

    @property
    def dead(self) -> bool:
        """Whether this incarnation writes nothing any more.

        One that was replaced may be stopped or cut off, and write when it wakes.
        """
        return self.final and self is not LeaveReason.REPLACED


class Register(MessageBase, frozen=True):
    """Join, or say again that this incarnation is here.

    `age_s` is how long the process has lived: of two incarnations of a worker the younger counts.
    """

    info: WorkerInfo | BalancerInfo
    age_s: Seconds = 0.0
    load: WorkerLoad = field(default_factory=WorkerLoad)


class Registered(MessageBase, frozen=True):
    """The lease to keep by heartbeats."""

    lease_s: Seconds


class Heartbeat(MessageBase, frozen=True):
    """Renew the sender's lease."""

    load: WorkerLoad


class RegisterAgain(MessageBase, frozen=True):
    """The service does not know the sender: it restarted, or the lease ran out."""


class Ended(MessageBase, frozen=True):
    """The sender's incarnation was replaced or evicted, or said goodbye; it never returns."""

    reason: LeaveReason


class Unregister(MessageBase, frozen=True):
    """The sender leaves of its own accord and writes into no peer's memory any more."""


class Evict(MessageBase, frozen=True):
    """A supervisor saw this incarnation die."""

    ref: WorkerRef


class Subscribe(MessageBase, frozen=True):
    """Send me every change from now on; repeat to stay subscribed.

    A Snapshot comes first unless the sender stands at `version` of the service's life `service`.
    Without `loads` no LoadReport comes: only who chooses among members needs those.
    """

    service: WorkerRef | None = None
    version: Gauge = 0
    loads: bool = True


class Subscribed(MessageBase, frozen=True):
    """The subscription's lease, and the version that the sender has if it missed nothing."""

    version: Gauge
    lease_s: Seconds


class Member(Struct, frozen=True, tag="worker"):
    """A registered engine and its latest load."""

    info: WorkerInfo
    load: WorkerLoad


class BalancerMember(Struct, frozen=True, tag="balancer"):
    """A registered load balancer and its latest load, in requests."""

    info: BalancerInfo
    load: WorkerLoad


AnyMember = Member | BalancerMember


class Snapshot(MessageBase, frozen=True):
    """All members at `version` of the service's life `service`, or part `part` of `num_parts`.

    `ended` names incarnations that lately died, for those who missed to hear it.
    """

    service: WorkerRef
    version: Gauge
    members: Annotated[tuple[AnyMember, ...], Meta(max_length=MAX_ROOMS)]
    part: Annotated[int, Meta(ge=0, lt=MAX_ROOMS)] = 0
    num_parts: Annotated[int, Meta(ge=1, le=MAX_ROOMS)] = 1
    ended: Annotated[tuple[tuple[WorkerRef, LeaveReason], ...], Meta(max_length=MAX_ROOMS)] = ()


class MemberJoined(MessageBase, frozen=True):
    """A registration, or a newer incarnation that replaces the old one."""

    version: Gauge
    member: AnyMember


class MemberLeft(MessageBase, frozen=True):
    """A lease ended, a member left, was evicted, or a newer incarnation took its place."""

    version: Gauge
    ref: WorkerRef
    reason: LeaveReason


class LoadReport(MessageBase, frozen=True):
    """Loads heard since the last report, pushed to subscribers a few times a second at most."""

    loads: Annotated[tuple[tuple[WorkerRef, WorkerLoad], ...], Meta(max_length=MAX_ROOMS)]

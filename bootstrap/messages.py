"""Every message on the wire: frozen, tagged, bounded.

Who sends what to whom:

    balancer  -> P, D      PrefillDispatch, DecodeDispatch, AbortRoom,
                           FlushCache, SetLogLevel, PrepareWeights, CommitWeights, DiscardWeights
    P         -> D         PrefillStarted, HandoffRecord, AbortRoom, WriterStopped
    D         -> P         Manifest, HandoffAccepted, AbortRoom
    P, D      -> balancer  TokenBatch, LegFailed, LegProgress, CommandAnswered
    everyone <-> bootstrap Register, Heartbeat, Unregister, Evict, Subscribe / Registered,
                           RegisterAgain, Ended, Subscribed, Snapshot, MemberJoined, MemberLeft,
                           LoadReport

Times cross the wire as remaining seconds, never as clock readings: hosts share no clock.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct, field

from bootstrap.commands import (
    CommandAnswered,
    CommitWeights,
    DiscardWeights,
    FlushCache,
    PrepareWeights,
    SetLogLevel,
)
from bootstrap.contract import KVContract
from bootstrap.identity import Peer, Role, Room, WorkerRef
from bootstrap.sampling import MAX_LOGPROBS, FinishReason, SamplingParams, TokenId, TokenIds
from bootstrap.tagged import Gauge, Tagged, Text

MAX_BLOCKS = 1 << 17
MAX_ROOMS = 1 << 14
MAX_DRAFT_TOKENS = 64
MAX_PROMPT_LOGPROBS = 1 << 18  # log probabilities and alternatives of one prompt, to fit a frame

Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]
Position = Annotated[int, Meta(ge=0, le=1 << 20)]
Epoch = Annotated[int, Meta(ge=1, lt=1 << 53)]
BlockIndex = Annotated[int, Meta(ge=0, lt=MAX_BLOCKS)]
Page = Annotated[int, Meta(ge=0, lt=1 << 31)]
Pages = Annotated[tuple[Page, ...], Meta(max_length=MAX_BLOCKS)]
RequestId = Annotated[str, Meta(max_length=128)]
PromptDigest = Annotated[bytes, Meta(min_length=16, max_length=16)]


class FailureReason(Enum):
    """Why a leg or a room ended without its answer."""

    CANCELLED = "cancelled"  # the client went away
    DEADLINE = "deadline"  # the request's own deadline passed
    PEER_LOST = "peer_lost"  # the other engine's incarnation is gone
    PEER_ABORTED = "peer_aborted"  # the other leg failed first
    TRANSFER_FAILED = "transfer_failed"  # the transport reported an error
    HANDOFF_REJECTED = "handoff_rejected"  # D could not verify the handoff record
    QUEUE_FULL = "queue_full"  # this worker's bounded queue has no room
    DRAINING = "draining"  # this worker takes no new rooms
    TOO_LARGE = "too_large"  # the request exceeds this worker's pool
    BAD_REQUEST = "bad_request"  # the dispatch contradicts itself
    NUMERICAL = "numerical"  # the model produced NaN or infinity for this request
    FINISHED = "finished"  # no fault: the request ended at its bootstrap token
    INTERNAL = "internal"  # a bug of ours, contained in one room


class Stage(Enum):
    """Where a leg is; a leg that reports is alive."""

    QUEUED = "queued"
    RUNNING = "running"
    TRANSFERRING = "transferring"
    WAITING = "waiting"


# --- one room's life -------------------------------------------------------------------------


class PrefillDispatch(Tagged, frozen=True):
    """Compute a prompt, sample the token at `output_offset`, hand off to `decode`.

    The last `output_offset` ids of `prompt_token_ids` are output that earlier attempts delivered.
    `bootstrap_stop_ids` are ids whose own text holds a whole stop string: sampling one ends the room.
    `decode` is None when `sampling` allows just one more token: then nothing is handed off.
    `num_prompt_logprobs` asks for the prompt tokens' log probabilities with so many alternatives; it
    counts with the prompt's length against MAX_PROMPT_LOGPROBS.
    """

    room: Room
    request_id: RequestId
    attempt: Position
    deadline_s: Seconds
    reply_to: Peer
    decode: Peer | None
    prompt_token_ids: TokenIds
    sampling: SamplingParams
    output_offset: Position = 0
    bootstrap_stop_ids: TokenIds = ()
    num_prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None


class DecodeDispatch(Tagged, frozen=True):
    """Expect a handoff from `prefill` and produce every token after the bootstrap token."""

    room: Room
    request_id: RequestId
    attempt: Position
    deadline_s: Seconds
    reply_to: Peer
    prefill: Peer
    prompt_token_ids: TokenIds
    sampling: SamplingParams
    output_offset: Position = 0


class PrefillStarted(Tagged, frozen=True):
    """P holds pages for the whole prompt and computes: D may now commit pages of its own.

    P's pages are always taken before D's, so the two pools cannot wait for each other in a circle.
    """

    room: Room


class Manifest(Tagged, frozen=True):
    """D's pages for logical blocks `first_block ...`; earlier blocks D holds already."""

    room: Room
    epoch: Epoch
    first_block: BlockIndex
    pages: Pages


class HandoffRecord(Tagged, frozen=True):
    """All writes of (room, epoch) are complete and these are the facts that make them valid.

    `draft_token_ids` are guesses at what follows the token; a decode engine may ignore them.
    `transfer_s` is how long writes were under way, for `transfer_bytes` in all.
    """

    room: Room
    epoch: Epoch
    token_id: TokenId
    position: Position
    num_prompt_tokens: Position
    prompt_digest: PromptDigest
    draft_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_DRAFT_TOKENS)] = ()
    transfer_s: Seconds = 0.0
    transfer_bytes: Gauge = 0


class HandoffAccepted(Tagged, frozen=True):
    """D verified the record; P may forget the room."""

    room: Room
    epoch: Epoch


class AbortRoom(Tagged, frozen=True):
    """End the room wherever it stands. Unknown rooms are remembered as ended."""

    room: Room
    reason: FailureReason


class WriterStopped(Tagged, frozen=True):
    """P will never write into (room, epoch) again: D may take its pages out of quarantine.

    `epoch` 0 means that P never saw a manifest and drops any that comes.
    """

    room: Room
    epoch: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0


class LegStats(Struct, frozen=True, omit_defaults=True):
    """What one leg measured, in seconds, tokens and bytes.

    The prefill leg's come with token 0, before its transfer is over: what that took comes with the
    decode leg's, at the end. `max_gap_s` is the longest time between two tokens of the decode leg.
    """

    queue_s: Seconds = 0.0
    compute_s: Seconds = 0.0
    num_cached_tokens: Position = 0
    transfer_s: Seconds = 0.0
    transfer_bytes: Gauge = 0
    max_gap_s: Seconds = 0.0


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """One token's log probability before filters and temperature, and its most probable rivals.

    `top` is (token id, log probability), most probable first; it may hold the token itself.
    """

    logprob: Annotated[float, Meta(le=0.0)]
    top: Annotated[tuple[tuple[TokenId, float], ...], Meta(max_length=MAX_LOGPROBS)] = ()


TokensLogprobs = Annotated[tuple[TokenLogprobs, ...], Meta(max_length=1 << 20)]


class RoomTokens(Struct, frozen=True, omit_defaults=True):
    """Output tokens of one room from `position` on; `finish` closes the room.

    `logprobs`, if asked for, is parallel to `token_ids`. `prompt_logprobs` comes once, with the
    bootstrap token of a first attempt: one entry for each prompt token but the first.
    """

    room: Room
    position: Position
    token_ids: TokenIds
    finish: FinishReason | None = None
    stats: LegStats | None = None
    logprobs: TokensLogprobs = ()
    prompt_logprobs: TokensLogprobs = ()


class TokenBatch(Tagged, frozen=True):
    """What one engine step produced for one balancer."""

    rooms: Annotated[tuple[RoomTokens, ...], Meta(max_length=MAX_ROOMS)]


class LegFailed(Tagged, frozen=True):
    """The first terminal failure of a leg, pushed as it happens."""

    room: Room
    reason: FailureReason
    detail: Text = ""


class LegProgress(Tagged, frozen=True):
    """Rooms this worker still holds for the balancer, and where each stands."""

    stages: Annotated[dict[Room, Stage], Meta(max_length=MAX_ROOMS)]


# --- membership ------------------------------------------------------------------------------


class TransferMetadata(Struct, frozen=True):
    """How to write into a worker's arena. `blob` is the backend's own connection data."""

    backend: Annotated[str, Meta(max_length=32)]
    transport: Annotated[str, Meta(max_length=64)]
    agent_name: Annotated[str, Meta(max_length=128)]
    base_address: Annotated[int, Meta(ge=0)]
    num_bytes: Gauge
    blob: Annotated[bytes, Meta(max_length=1 << 20)]


class WorkerLimits(Struct, frozen=True):
    """What a worker can ever take; requests beyond it are refused before dispatch."""

    max_model_len: Gauge
    num_blocks: Gauge
    max_num_seqs: Gauge
    max_queue: Gauge


class WorkerInfo(Struct, frozen=True):
    """A worker's registration."""

    peer: Peer
    role: Role
    model: Text
    contract: KVContract
    limits: WorkerLimits
    transfer: TransferMetadata
    host: Text = ""
    pid: Gauge = 0


class WorkerState(Enum):
    """A worker as the cluster sees it."""

    READY = "ready"
    DRAINING = "draining"


class WorkerLoad(Struct, frozen=True, omit_defaults=True):
    """What a worker says of itself in each heartbeat. `pages` counts pages by ledger state."""

    state: WorkerState = WorkerState.READY
    num_queued: Gauge = 0
    num_running: Gauge = 0
    num_rooms: Gauge = 0
    pages: Annotated[dict[Annotated[str, Meta(max_length=32)], Gauge], Meta(max_length=16)] = {}
    counters: Annotated[dict[Annotated[str, Meta(max_length=64)], Gauge], Meta(max_length=64)] = {}


class LeaveReason(Enum):
    """Why a worker is no member any more."""

    LEASE_EXPIRED = "lease_expired"  # nothing heard: dead, stopped or out of reach
    NOT_ANNOUNCED = "not_announced"  # the service restarted and did not hear from it in time
    UNREGISTERED = "unregistered"  # said goodbye after its last write
    EVICTED = "evicted"  # a supervisor saw the process end
    REPLACED = "replaced"  # a younger incarnation took its place

    @property
    def dead(self) -> bool:
        """Whether this incarnation writes nothing any more and never returns."""
        return self not in (LeaveReason.LEASE_EXPIRED, LeaveReason.NOT_ANNOUNCED)


class Register(Tagged, frozen=True):
    """Join, or say again that this incarnation is here.

    `age_s` is how long the process has lived: of two incarnations of a worker the younger counts.
    """

    info: WorkerInfo
    age_s: Seconds = 0.0
    load: WorkerLoad = field(default_factory=WorkerLoad)


class Registered(Tagged, frozen=True):
    """The lease to keep by heartbeats."""

    lease_s: Seconds


class Heartbeat(Tagged, frozen=True):
    """Renew the sender's lease."""

    load: WorkerLoad


class RegisterAgain(Tagged, frozen=True):
    """The service does not know the sender: it restarted, or the lease ran out."""


class Ended(Tagged, frozen=True):
    """The sender's incarnation was replaced or evicted, or said goodbye; it never returns."""

    reason: LeaveReason


class Unregister(Tagged, frozen=True):
    """The sender leaves of its own accord and writes into no peer's memory any more."""


class Evict(Tagged, frozen=True):
    """A supervisor saw this incarnation die."""

    ref: WorkerRef


class Subscribe(Tagged, frozen=True):
    """Send me every change from now on; repeat to stay subscribed.

    A Snapshot comes first unless the sender stands at `version` of the service's life `service`.
    Without `loads` no LoadReport comes: only who chooses among members needs those.
    """

    service: WorkerRef | None = None
    version: Gauge = 0
    loads: bool = True


class Subscribed(Tagged, frozen=True):
    """The subscription's lease, and the version that the sender has if it missed nothing."""

    version: Gauge
    lease_s: Seconds


class Member(Struct, frozen=True):
    """A registered worker and its latest load."""

    info: WorkerInfo
    load: WorkerLoad


class Snapshot(Tagged, frozen=True):
    """All members at `version` of the service's life `service`, or part `part` of `num_parts`.

    `ended` names incarnations that lately died, for those who missed to hear it.
    """

    service: WorkerRef
    version: Gauge
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_ROOMS)]
    part: Annotated[int, Meta(ge=0, lt=MAX_ROOMS)] = 0
    num_parts: Annotated[int, Meta(ge=1, le=MAX_ROOMS)] = 1
    ended: Annotated[tuple[tuple[WorkerRef, LeaveReason], ...], Meta(max_length=MAX_ROOMS)] = ()


class MemberJoined(Tagged, frozen=True):
    """A registration, or a newer incarnation that replaces the old one."""

    version: Gauge
    member: Member


class MemberLeft(Tagged, frozen=True):
    """A worker's lease ended, it left, was evicted, or a newer incarnation took its place."""

    version: Gauge
    ref: WorkerRef
    reason: LeaveReason


class LoadReport(Tagged, frozen=True):
    """Loads heard since the last report, pushed to subscribers a few times a second at most."""

    loads: Annotated[tuple[tuple[WorkerRef, WorkerLoad], ...], Meta(max_length=MAX_ROOMS)]


Message = (
    PrefillDispatch | DecodeDispatch | PrefillStarted | Manifest | HandoffRecord | HandoffAccepted
    | AbortRoom | WriterStopped | TokenBatch | LegFailed | LegProgress
    | FlushCache | SetLogLevel | PrepareWeights | CommitWeights | DiscardWeights | CommandAnswered
    | Register | Registered | Heartbeat | RegisterAgain | Ended | Unregister | Evict | Subscribe
    | Subscribed | Snapshot | MemberJoined | MemberLeft | LoadReport
)  # fmt: skip


class Envelope(Struct, frozen=True):
    """What one frame holds. A receiver drops what is addressed to another incarnation.

    `recipient` is None only towards the bootstrap service, whose incarnation nobody knows.
    """

    sender: Peer
    recipient: WorkerRef | None
    body: Message

"""Every message on the wire: frozen, tagged, bounded.

Who sends what to whom:

    balancer  -> P, D      PrefillDispatch, DecodeDispatch, AbortRoom,
                           FlushCache, SetLogLevel, PrepareWeights, CommitWeights, DiscardWeights,
                           AskLedger
    P         -> D         PrefillStarted, HandoffRecord, AbortRoom, WriterStopped
    D         -> P         Manifest, HandoffAccepted, BlocksDamaged, AbortRoom
    P, D      -> balancer  TokenBatch, LegFailed, LegProgress, CommandAnswered, LedgerReport
    anyone    -> P, D      Ping, answered by Pong
    everyone <-> bootstrap Register, Heartbeat, Unregister, Evict, Subscribe / Registered,
                           RegisterAgain, Ended, Subscribed, Snapshot, MemberJoined, MemberLeft,
                           LoadReport

Times cross the wire as remaining seconds, never as clock readings: hosts share no clock.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from bootstrap.commands import (
    CommandAnswered,
    CommitWeights,
    DiscardWeights,
    FlushCache,
    PrepareWeights,
    SetLogLevel,
)
from bootstrap.fields import (
    MAX_BLOCKS,
    MAX_DRAFT_TOKENS,
    MAX_ROOMS,
    BlockDigests,
    BlockIndex,
    Epoch,
    Gauge,
    MessageBase,
    Pages,
    Position,
    PromptDigest,
    RequestId,
    Seconds,
    Text,
)
from bootstrap.identity import Peer, Room, WorkerRef
from bootstrap.inspection import AskLedger, LedgerReport
from bootstrap.membership import (
    Ended,
    Evict,
    Heartbeat,
    LoadReport,
    MemberJoined,
    MemberLeft,
    Register,
    RegisterAgain,
    Registered,
    Snapshot,
    Subscribe,
    Subscribed,
    Unregister,
)
from bootstrap.sampling import MAX_LOGPROBS, FinishReason, SamplingParams, TokenId, TokenIds

MAX_RESENDS = 1  # a transport that damages blocks twice is not given a third try


class FailureReason(Enum):
    """Why a leg or a room ended without its answer."""

    CANCELLED = "cancelled"  # the client went away
    DEADLINE = "deadline"  # the request's own deadline passed
    PEER_LOST = "peer_lost"  # the other engine's incarnation is gone
    PEER_ABORTED = "peer_aborted"  # the other leg failed first
    BALANCER_LOST = "balancer_lost"  # the balancer that wanted the answer is no member
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


class PrefillDispatch(MessageBase, frozen=True):
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


class DecodeDispatch(MessageBase, frozen=True):
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


class PrefillStarted(MessageBase, frozen=True):
    """P holds pages for the whole prompt and computes: D may now commit pages of its own.

    P's pages are always taken before D's, so the two pools cannot wait for each other in a circle.
    """

    room: Room


class Manifest(MessageBase, frozen=True):
    """D's pages for logical blocks `first_block ...`; earlier blocks D holds already."""

    room: Room
    epoch: Epoch
    first_block: BlockIndex
    pages: Pages


class HandoffRecord(MessageBase, frozen=True):
    """All writes of (room, epoch) are complete and these are the facts that make them valid.

    `draft_token_ids` are guesses at what follows the token; a decode engine may ignore them.
    `transfer_s` is how long writes were under way, for `transfer_bytes` in all. `block_digests` holds 8
    bytes for each block of the manifest (`kv_transfer/digests.py`), or nothing where P does not verify;
    with it P keeps its pages until it is answered. `num_resends` counts the answered BlocksDamaged.
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
    block_digests: BlockDigests = b""
    num_resends: Annotated[int, Meta(ge=0, le=MAX_RESENDS)] = 0


class BlocksDamaged(MessageBase, frozen=True):
    """These blocks did not land as they were sent: write them again and send the record once more."""

    room: Room
    epoch: Epoch
    blocks: Annotated[tuple[BlockIndex, ...], Meta(min_length=1, max_length=MAX_BLOCKS)]


class HandoffAccepted(MessageBase, frozen=True):
    """D verified the record; P may forget the room."""

    room: Room
    epoch: Epoch


class AbortRoom(MessageBase, frozen=True):
    """End the room wherever it stands. Unknown rooms are remembered as ended."""

    room: Room
    reason: FailureReason


class WriterStopped(MessageBase, frozen=True):
    """P will never write into (room, epoch) again: D may take its pages out of quarantine.

    `epoch` 0 means that P never saw a manifest and drops any that comes. `cut` when a write ended by an
    error: what of it was on its way may still arrive for a moment.
    """

    room: Room
    epoch: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0
    cut: bool = False


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


class TokenBatch(MessageBase, frozen=True):
    """What one engine step produced for one balancer."""

    rooms: Annotated[tuple[RoomTokens, ...], Meta(max_length=MAX_ROOMS)]


class LegFailed(MessageBase, frozen=True):
    """The first terminal failure of a leg, pushed as it happens."""

    room: Room
    reason: FailureReason
    detail: Text = ""


class LegProgress(MessageBase, frozen=True):
    """Rooms this worker still holds for the balancer, and where each stands."""

    stages: Annotated[dict[Room, Stage], Meta(max_length=MAX_ROOMS)]


class Ping(MessageBase, frozen=True):
    """Do messages of mine reach you, and yours me? An engine answers beside its model steps."""


class Pong(MessageBase, frozen=True):
    """They do."""


Message = (
    PrefillDispatch | DecodeDispatch | PrefillStarted | Manifest | HandoffRecord | HandoffAccepted
    | BlocksDamaged | AbortRoom | WriterStopped | TokenBatch | LegFailed | LegProgress
    | FlushCache | SetLogLevel | PrepareWeights | CommitWeights | DiscardWeights | CommandAnswered
    | AskLedger | LedgerReport | Ping | Pong
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

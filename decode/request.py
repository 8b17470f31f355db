"""One attempt on its way through the decode engine."""

from dataclasses import dataclass, field
from enum import Enum

from bootstrap.errors import IllegalTransition
from bootstrap.identity import short_room
from bootstrap.messages import DecodeDispatch, HandoffRecord, LegStats, Stage
from engine.step import SampleMemory


class DecodeState(Enum):
    """Where a request stands."""

    EXPECTED = "expected"  # dispatched; the prefill engine has not started
    ADMITTING = "admitting"  # the prefill engine computes; waits here for pages
    RECEIVING = "receiving"  # manifest sent; the prefill engine may write our pages
    RUNNING = "running"  # handed off; in every decode step
    RETRACTED = "retracted"  # pages given up, bytes kept aside; comes back before anyone new
    ENDED = "ended"


class DecodeEvent(Enum):
    """What moves it."""

    STARTED = "started"
    ADMIT = "admit"
    COMMIT = "commit"
    RETRACT = "retract"
    RESUME = "resume"
    END = "end"


_S, _E = DecodeState, DecodeEvent

TRANSITIONS: dict[tuple[DecodeState, DecodeEvent], DecodeState] = {
    (_S.EXPECTED, _E.STARTED): _S.ADMITTING,
    (_S.ADMITTING, _E.ADMIT): _S.RECEIVING,
    (_S.RECEIVING, _E.COMMIT): _S.RUNNING,
    (_S.RUNNING, _E.RETRACT): _S.RETRACTED,
    (_S.RETRACTED, _E.RESUME): _S.RUNNING,
    **{(state, _E.END): _S.ENDED for state in _S if state is not _S.ENDED},
}

STAGES = {
    _S.EXPECTED: Stage.WAITING,
    _S.ADMITTING: Stage.QUEUED,
    _S.RECEIVING: Stage.TRANSFERRING,
    _S.RUNNING: Stage.RUNNING,
    _S.RETRACTED: Stage.QUEUED,
}

NEEDS_PREFILL = (_S.EXPECTED, _S.ADMITTING, _S.RECEIVING)


@dataclass(slots=True)
class DecodeRequest:
    """Invariant: in RUNNING, the KV of all tokens but the last lies in the pages."""

    dispatch: DecodeDispatch
    arrived_at: float
    token_ids: list[int]  # prompt, then output
    hashes: list[bytes]
    state: DecodeState = DecodeState.EXPECTED
    grammar: object = None  # compiled; None where none is wanted, or not yet there
    memory: SampleMemory = field(default_factory=SampleMemory)
    pages: list[int] = field(default_factory=list)
    num_cached: int = 0  # prompt tokens that were not transferred
    epoch: int = 0
    num_resends: int = 0  # how often the prefill engine was asked for `damaged` blocks
    damaged: tuple[int, ...] = ()
    admitted_at: float = 0.0
    committed_at: float = 0.0
    num_named: int = 0  # blocks named in the prefix cache
    record: HandoffRecord | None = None  # from commit on
    token_at: float = 0.0  # when the last token came
    max_gap_s: float = 0.0
    _story: list[str] = field(default_factory=list)

    @property
    def room(self) -> bytes:
        """The attempt's room."""
        return self.dispatch.room

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt length in tokens."""
        return len(self.dispatch.prompt_token_ids)

    @property
    def waits_for_grammar(self) -> bool:
        """Whether no token can be sampled yet."""
        return self.dispatch.sampling.grammar is not None and self.grammar is None

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV is computed, once the request runs."""
        return len(self.token_ids) - 1

    @property
    def next_position(self) -> int:
        """Output position of the next token."""
        return self.dispatch.output_offset + len(self.token_ids) - self.num_prompt_tokens

    @property
    def deadline_at(self) -> float:
        """When the request's own deadline passes, on this engine's clock."""
        return self.arrived_at + self.dispatch.deadline_s

    def stats(self, now: float) -> LegStats:
        """What this leg measured, once it decodes, and what the record told of the transfer."""
        record = self.record
        assert record is not None
        return LegStats(
            queue_s=self.admitted_at - self.arrived_at,
            compute_s=now - self.committed_at,
            num_cached_tokens=self.num_cached,
            transfer_s=record.transfer_s,
            transfer_bytes=record.transfer_bytes,
            max_gap_s=self.max_gap_s,
        )

    def advance(self, event: DecodeEvent) -> None:
        """Make a move of the table; raises IllegalTransition with the request's story."""
        target = TRANSITIONS.get((self.state, event))
        arrow = f"{self.state.value} -{event.value}->"
        self._story.append(f"{arrow} {target.value if target else '?'}")
        if target is None:
            name = f"request {self.dispatch.request_id} room {short_room(self.room)}"
            raise IllegalTransition(f"{name}: {'; '.join(self._story)}")
        self.state = target

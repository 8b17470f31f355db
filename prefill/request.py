"""One prompt on its way through the prefill engine."""

from dataclasses import dataclass, field
from enum import Enum

from bootstrap.errors import IllegalTransition
from bootstrap.identity import short_room
from bootstrap.messages import PrefillDispatch, Stage, TokenLogprobs


class PrefillState(Enum):
    """Where a request stands."""

    QUEUED = "queued"  # holds no page
    COMPUTING = "computing"  # pages taken, chunks running
    SENDING = "sending"  # token 0 is out, the transfer goes on
    CLOSING = "closing"  # ended, but writes may still read its pages
    ENDED = "ended"


class PrefillEvent(Enum):
    """What moves it."""

    START = "start"
    HAND_OFF = "hand_off"
    END = "end"
    CLOSED = "closed"


_S, _E = PrefillState, PrefillEvent

TRANSITIONS: dict[tuple[PrefillState, PrefillEvent], tuple[PrefillState, ...]] = {
    (_S.QUEUED, _E.START): (_S.COMPUTING,),
    (_S.QUEUED, _E.END): (_S.ENDED,),
    (_S.COMPUTING, _E.HAND_OFF): (_S.SENDING,),
    (_S.COMPUTING, _E.END): (_S.CLOSING, _S.ENDED),
    (_S.SENDING, _E.END): (_S.CLOSING,),
    (_S.SENDING, _E.CLOSED): (_S.ENDED,),
    (_S.CLOSING, _E.CLOSED): (_S.ENDED,),
}

STAGES = {
    _S.QUEUED: Stage.QUEUED,
    _S.COMPUTING: Stage.RUNNING,
    _S.SENDING: Stage.TRANSFERRING,
}


@dataclass(slots=True)
class PrefillRequest:
    """Invariant: pages are held in COMPUTING, SENDING and CLOSING, and in no other state."""

    dispatch: PrefillDispatch
    arrived_at: float
    hashes: list[bytes]
    grammar: object = None  # compiled; None where none is wanted, or not yet there
    state: PrefillState = PrefillState.QUEUED
    pages: list[int] = field(default_factory=list)
    num_cached: int = 0  # prompt tokens found in the prefix cache
    num_computed: int = 0  # prompt tokens whose KV is in the pages
    started_at: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # as chunks are computed
    _story: list[str] = field(default_factory=list)

    @property
    def room(self) -> bytes:
        """The attempt's room."""
        return self.dispatch.room

    @property
    def num_tokens(self) -> int:
        """Prompt length in tokens."""
        return len(self.dispatch.prompt_token_ids)

    @property
    def num_scored(self) -> int:
        """The prompt's tokens, short of earlier attempts' output, if they are to be scored."""
        dispatch = self.dispatch
        if dispatch.num_prompt_logprobs is None:
            return 0
        return self.num_tokens - dispatch.output_offset

    @property
    def waits_for_grammar(self) -> bool:
        """Whether no token can be sampled yet."""
        return self.dispatch.sampling.grammar is not None and self.grammar is None

    @property
    def num_computable(self) -> int:
        """Prompt tokens that could be computed now."""
        return self.num_tokens - self.waits_for_grammar - self.num_computed

    @property
    def deadline_at(self) -> float:
        """When the request's own deadline passes, on this engine's clock."""
        return self.arrived_at + self.dispatch.deadline_s

    @property
    def transfers(self) -> bool:
        """Whether a decode engine takes over."""
        return self.dispatch.decode is not None

    @property
    def may_be_continued(self) -> bool:
        """Whether a decode engine was to go on from here: it may die, and another take over."""
        return self.transfers and self.num_computed == self.num_tokens

    def advance(self, event: PrefillEvent, target: PrefillState) -> None:
        """Make a move of the table; raises IllegalTransition with the request's story."""
        self._story.append(f"{self.state.value} -{event.value}-> {target.value}")
        if target not in TRANSITIONS.get((self.state, event), ()):
            name = f"request {self.dispatch.request_id} room {short_room(self.room)}"
            raise IllegalTransition(f"{name}: {'; '.join(self._story)}")
        self.state = target

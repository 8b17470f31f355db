"""Who is admitted, who decodes, who gives way: the decode engine's pages and its batch.

Admission is all or nothing, in the order in which prefill engines started, and leaves a growth reserve
of one block per active request. Prompts that fit may pass one that does not, until its patience ends.
Every running request is in every step. When pages run out the youngest running request is retracted with
its bytes kept aside; the oldest always goes on, and nobody new is admitted before the retracted are back.

So every request ends, in whatever order they are admitted: who holds pages here waits for nobody's pages
on either side, since its prefill engine took its own before; so it ends and gives its pages back, and
from the end of its patience on they are all for the one whose turn it is, which fits an empty pool.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from decode.request import DecodeEvent, DecodeRequest, DecodeState
from engine.core import StepPlan, SwapIn, SwapOut
from engine.limits import EngineLimits
from engine.patience import Patience
from engine.step import SampleAt, SequenceChunk
from kv_transfer.ledger import PageLedger
from kv_transfer.prefix import BlockHasher

LOOKAHEAD = 32  # prompts that are looked at for one that fits

_S, _E = DecodeState, DecodeEvent


class DecodeScheduler:
    """A request is in exactly one of the groups below from its prefill's start to its end."""

    def __init__(self, limits: EngineLimits) -> None:
        self.ledger = PageLedger(limits.num_blocks)
        self.hasher = BlockHasher(limits.block_size)
        self.admitting: dict[bytes, DecodeRequest] = {}  # in order of their prefill's start
        self.receiving: dict[bytes, DecodeRequest] = {}
        self.running: dict[bytes, DecodeRequest] = {}  # oldest commit first
        self.retracted: dict[bytes, DecodeRequest] = {}  # oldest commit first
        self.num_retractions = 0
        self._limits = limits
        self._patience = Patience()

    def plan(self, now: float) -> tuple[StepPlan | None, list[DecodeRequest]]:
        """The next step, and the requests that were admitted for it to go on without them."""
        swaps_in = self._resume()
        admitted = [] if self.retracted else self._admit(now)
        swaps_out = self._make_room()
        assert not {swap.room for swap in swaps_in} & {swap.room for swap in swaps_out}
        running = list(self.running.values())
        if not running and not swaps_out:
            return None, admitted
        rooms = tuple(request.room for request in running)
        chunks = tuple(_chunk(request) for request in running)
        return StepPlan(rooms, chunks, (*swaps_out, *swaps_in)), admitted

    def started(self, request: DecodeRequest) -> None:
        """The prefill engine holds the prompt's pages: the request may be given pages here."""
        request.advance(_E.STARTED)
        self.admitting[request.room] = request

    def commit(self, request: DecodeRequest, token_id: int, now: float) -> None:
        """The pages are valid; decode on from the bootstrap token."""
        del self.receiving[request.room]
        request.pages = list(self.ledger.commit(request.room, request.epoch))
        request.advance(_E.COMMIT)
        request.committed_at = now
        request.token_ids.append(token_id)
        self.running[request.room] = request

    def append(self, request: DecodeRequest, token_id: int) -> None:
        """A step computed the KV of the request's last token and sampled the next one.

        That its logits were finite shows that all its KV is: only now are blocks named.
        """
        request.token_ids.append(token_id)
        self._name_blocks(request)

    def remove(self, request: DecodeRequest) -> bool:
        """End a request wherever it stands; True if a writer may still write its pages."""
        for group in (self.admitting, self.receiving, self.running, self.retracted):
            group.pop(request.room, None)
        request.advance(_E.END)
        return self.ledger.release(request.room)

    # --- pages ---------------------------------------------------------------------------------

    def _resume(self) -> list[SwapIn]:
        """Bring retracted requests back, oldest first, while each finds its pages and one more."""
        swaps = []
        for request in list(self.retracted.values()):
            prefix = self._lookup(request.hashes)
            num_kv = self._limits.blocks_for(request.num_kv_tokens)
            num_new = self._limits.blocks_for(len(request.token_ids)) - len(prefix)
            if not self.ledger.can_take(prefix, num_new + len(self.running)):
                break
            pages = self.ledger.take(request.room, prefix, num_new)
            assert pages is not None
            request.advance(_E.RESUME)
            request.pages = pages
            request.num_named = len(prefix)
            del self.retracted[request.room]
            self.running[request.room] = request
            swaps.append(SwapIn(request.room, len(prefix), tuple(pages[len(prefix) : num_kv])))
        if swaps:
            self.running = _by_age(self.running.values())
        return swaps

    def _admit(self, now: float) -> list[DecodeRequest]:
        """Reserve pages for started prompts in order; some may pass a head that does not fit."""
        admitted = []
        head: bytes | None = None  # of those that do not fit
        for request in list(islice(self.admitting.values(), LOOKAHEAD)):
            if head is not None and not self._patience.may_pass(head, now):
                break
            num_active = len(self.running) + len(self.receiving)
            if num_active >= self._limits.max_num_seqs:
                break
            prefix = self._lookup(request.hashes)
            num_new = self._limits.blocks_for(request.num_prompt_tokens) - len(prefix)
            if not self.ledger.can_take(prefix, num_new + num_active):
                if head is None:
                    head = request.room
                    self._patience.waits(head, now)
                continue
            if head is not None:
                self._patience.passed(head)
            epoch = self.ledger.reserve(request.room, prefix, num_new)
            assert epoch is not None
            del self.admitting[request.room]
            self.receiving[request.room] = request
            request.advance(_E.ADMIT)
            request.epoch = epoch
            request.admitted_at = now
            request.num_cached = min(len(prefix) * self._limits.block_size, len(request.token_ids))
            request.num_named = len(prefix)
            admitted.append(request)
        return admitted

    def _make_room(self) -> list[SwapOut]:
        """A page for each running request's next token; the youngest give way to the oldest."""
        swaps: list[SwapOut] = []
        for request in list(self.running.values()):
            while request.state is _S.RUNNING and self._needs_page(request):
                fresh = self.ledger.grow(request.room, 1)
                if fresh is None:
                    swaps.append(self._retract(next(reversed(self.running.values()))))
                else:
                    request.pages.extend(fresh)
        return swaps

    def _needs_page(self, request: DecodeRequest) -> bool:
        return self._limits.blocks_for(len(request.token_ids)) > len(request.pages)

    def _retract(self, request: DecodeRequest) -> SwapOut:
        num_kv = self._limits.blocks_for(request.num_kv_tokens)
        swap = SwapOut(request.room, tuple(request.pages[:num_kv]))
        self.ledger.release(request.room)
        request.advance(_E.RETRACT)
        request.pages = []
        del self.running[request.room]
        self.retracted = _by_age([*self.retracted.values(), request])
        self.num_retractions += 1
        return swap

    def _lookup(self, hashes: Sequence[bytes]) -> list[int]:
        return self.ledger.lookup(hashes) if self._limits.prefix_caching else []

    def _name_blocks(self, request: DecodeRequest) -> None:
        """Name the blocks that became full, for later prompts to find."""
        if not self._limits.prefix_caching:
            return
        self.hasher.extend(request.hashes, request.token_ids, request.num_kv_tokens)
        for index in range(request.num_named, len(request.hashes)):
            self.ledger.name_block(request.room, index, request.hashes[index])
        request.num_named = len(request.hashes)

    def validate(self) -> None:
        """Raise where groups, states and ledger disagree."""
        self.ledger.validate()
        groups = {
            _S.ADMITTING: self.admitting,
            _S.RECEIVING: self.receiving,
            _S.RUNNING: self.running,
            _S.RETRACTED: self.retracted,
        }
        for state, group in groups.items():
            assert all(r.state is state and r.room == room for room, r in group.items())
        for room, request in self.running.items():
            assert tuple(request.pages) == self.ledger.pages_of(room)
            assert len(request.pages) >= self._limits.blocks_for(request.num_kv_tokens)
        for room in (*self.admitting, *self.retracted):
            assert not self.ledger.pages_of(room)


def _by_age(requests: Iterable[DecodeRequest]) -> dict[bytes, DecodeRequest]:
    by_age = sorted(requests, key=lambda request: request.committed_at)
    return {request.room: request for request in by_age}


def _chunk(request: DecodeRequest) -> SequenceChunk:
    """The request's last token: its KV is computed, and the next token sampled."""
    sample = SampleAt(
        request.dispatch.sampling,
        request.next_position,
        request.token_ids,
        request.memory,
        request.grammar,
    )
    return SequenceChunk(request.token_ids[-1:], request.num_kv_tokens, request.pages, sample)

"""Who owns each page. Pure bookkeeping; no bytes, no sockets, no clock.

Every page is in exactly one state, and every room's pages can be asked for:

    FREE         nobody's
    CACHED       nobody's, but its content has a name and may be used again; evicted oldest first,
                 those that are kept for somebody last
    IN_USE       read and written by the rooms of this engine (a shared prefix has several)
    LEASED       computed, and still read by this engine's writes to a peer
    RESERVED     promised to a room's incoming KV; no peer knows of it yet
    WRITING      named in a manifest: a peer may write it at any moment
    QUARANTINED  its room ended while a peer may still write it: not to be reused

Moves: `take` and `grow` bring pages into use, `reserve -> expose -> commit` brings handed-off pages
into use, `lease` marks them read-only, `release` ends a room wherever it stands, and only
`writer_stopped` ends a quarantine.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from bootstrap.errors import LedgerError
from kv_transfer.eviction import EvictionOrder


class PageState(Enum):
    """The seven states of a page."""

    FREE = "free"
    CACHED = "cached"
    IN_USE = "in_use"
    LEASED = "leased"
    RESERVED = "reserved"
    WRITING = "writing"
    QUARANTINED = "quarantined"


_S = PageState
_INCOMING = (_S.RESERVED, _S.WRITING, _S.QUARANTINED)


@dataclass(slots=True)
class _Holding:
    """A room's pages in logical order: the first `num_own` in `state`, the rest incoming."""

    state: PageState = _S.IN_USE
    pages: list[int] = field(default_factory=list)
    incoming: list[int] = field(default_factory=list)
    incoming_state: PageState = _S.RESERVED
    epoch: int = 0
    writer_stopped: bool = False


class PageLedger:
    """Every page has one state; the states' counts always sum to the pool's size.

    Incoming pages (reserved, writing, quarantined) belong to one room alone and are never shared,
    cached or evicted.
    """

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))
        self._holders: dict[int, dict[bytes, PageState]] = {}  # pages in use, leased or incoming
        self._rooms: dict[bytes, _Holding] = {}
        self._page_of_hash: dict[bytes, int] = {}
        self._hash_of_page: dict[int, bytes] = {}
        self._cached = EvictionOrder()
        self._counts: Counter[PageState] = Counter({_S.FREE: num_pages})
        self._last_epoch = 0

    # --- asking --------------------------------------------------------------------------------

    @property
    def num_pages(self) -> int:
        """Size of the pool."""
        return self._num_pages

    @property
    def num_available(self) -> int:
        """Pages that `take`, `grow` or `reserve` could hand out now: free and cached ones."""
        return len(self._free) + len(self._cached)

    def counts(self) -> dict[str, int]:
        """Pages by state name; the values sum to `num_pages`."""
        return {state.value: self._counts[state] for state in PageState}

    def epoch_of(self, room: bytes) -> int:
        """Under which epoch pages were last reserved for the room; 0 for none."""
        holding = self._rooms.get(room)
        return 0 if holding is None else holding.epoch

    def counts_of(self, room: bytes) -> dict[str, int]:
        """The room's pages by state name; a shared page is counted in each of its rooms."""
        holding = self._rooms.get(room)
        if holding is None:
            return {}
        counts = Counter({holding.state: len(holding.pages)})
        counts[holding.incoming_state] += len(holding.incoming)
        return {state.value: count for state, count in counts.items() if count}

    def rooms(self) -> list[bytes]:
        """Rooms that hold any page, also in quarantine."""
        return list(self._rooms)

    def pages_of(self, room: bytes) -> tuple[int, ...]:
        """The room's pages in logical order; empty when it holds none."""
        holding = self._rooms.get(room)
        return () if holding is None else (*holding.pages, *holding.incoming)

    def state_of(self, page: int) -> PageState:
        """The page's one state."""
        holders = self._holders.get(page)
        if holders:
            return _S.IN_USE if _S.IN_USE in holders.values() else next(iter(holders.values()))
        return _S.CACHED if page in self._cached else _S.FREE

    def lookup(self, hashes: Sequence[bytes]) -> list[int]:
        """Pages of the longest run of `hashes` that is cached or in use, from the first on."""
        pages: list[int] = []
        for name in hashes:
            page = self._page_of_hash.get(name)
            if page is None:
                break
            pages.append(page)
        return pages

    def can_take(self, prefix: Sequence[int], num_new: int) -> bool:
        """Whether `num_new` pages are to be had while `prefix` is kept."""
        kept = sum(1 for page in prefix if page in self._cached)
        return self.num_available - kept >= num_new

    # --- moving --------------------------------------------------------------------------------

    def take(self, room: bytes, prefix: Sequence[int], num_new: int) -> list[int] | None:
        """Bring `prefix` (from `lookup`) and `num_new` pages into use; None if they do not fit."""
        self._must_be_new(room)
        if not self.can_take(prefix, num_new):
            return None
        self._rooms[room] = holding = _Holding()
        for page in prefix:
            self._hold(page, room, _S.IN_USE)
        holding.pages = [*prefix, *self._draw(room, num_new, _S.IN_USE)]
        return list(holding.pages)

    def grow(self, room: bytes, num_new: int) -> list[int] | None:
        """More pages in use for a room that has some; None if they do not fit."""
        holding = self._holding(room)
        if holding.state is not _S.IN_USE or holding.incoming:
            raise LedgerError(f"grow: room {room.hex()} is not in use")
        if self.num_available < num_new:
            return None
        fresh = self._draw(room, num_new, _S.IN_USE)
        holding.pages.extend(fresh)
        return fresh

    def reserve(self, room: bytes, prefix: Sequence[int], num_new: int) -> int | None:
        """Promise `num_new` pages to incoming KV that follows `prefix`; the new epoch, or None."""
        self._must_be_new(room)
        if not self.can_take(prefix, num_new):
            return None
        self._last_epoch += 1
        self._rooms[room] = holding = _Holding(epoch=self._last_epoch)
        for page in prefix:
            self._hold(page, room, _S.IN_USE)
        holding.pages = list(prefix)
        holding.incoming = self._draw(room, num_new, _S.RESERVED)
        return holding.epoch

    def expose(self, room: bytes) -> tuple[int, ...]:
        """The reserved pages go into a manifest: from now on a peer may write them."""
        holding = self._holding(room)
        if holding.incoming_state is not _S.RESERVED or not holding.epoch:
            raise LedgerError(f"expose: room {room.hex()} has no reservation")
        self._move_incoming(room, holding, _S.WRITING)
        return tuple(holding.incoming)

    def commit(self, room: bytes, epoch: int) -> tuple[int, ...]:
        """The peer's handoff record made the bytes valid; all the room's pages, now in use."""
        holding = self._holding(room)
        if holding.incoming_state is not _S.WRITING or holding.epoch != epoch:
            raise LedgerError(f"commit: room {room.hex()} does not wait for epoch {epoch}")
        self._move_incoming(room, holding, _S.IN_USE)
        holding.pages.extend(holding.incoming)
        holding.incoming = []
        holding.epoch = 0
        return tuple(holding.pages)

    def lease(self, room: bytes) -> None:
        """Computing is over; the pages stay for writes that still read them."""
        holding = self._holding(room)
        if holding.state is not _S.IN_USE or holding.epoch:
            raise LedgerError(f"lease: room {room.hex()} is not in use")
        holding.state = _S.LEASED
        for page in holding.pages:
            self._hold(page, room, _S.LEASED)

    def name_block(self, room: bytes, index: int, block_hash: bytes) -> None:
        """The room's block `index` is full and holds what `block_hash` names: cacheable.

        The first page of a name keeps it; a second copy stays unnamed and is freed at its end.
        """
        page = self._holding(room).pages[index]
        if block_hash not in self._page_of_hash and page not in self._hash_of_page:
            self._page_of_hash[block_hash] = page
            self._hash_of_page[page] = block_hash

    def keep(self, room: bytes, until: float) -> None:
        """Once the room has ended, give up other cached pages before its named ones."""
        for page in self._holding(room).pages:
            if page in self._hash_of_page:
                self._cached.keep(page, until)

    def end_keeping(self, now: float) -> None:
        """Let time pass for pages that are kept."""
        self._cached.end_keeping(now)

    def release(self, room: bytes) -> bool:
        """End a room wherever it stands; True if pages went into quarantine. Idempotent.

        Tail blocks are given back first, so that the cache loses a prefix from its end.
        """
        holding = self._rooms.get(room)
        if holding is None or holding.incoming_state is _S.QUARANTINED:
            return False
        for page in reversed(holding.pages):
            self._drop(page, room)
        holding.pages = []
        exposed = holding.incoming_state is _S.WRITING and bool(holding.incoming)
        if exposed and not holding.writer_stopped:
            self._move_incoming(room, holding, _S.QUARANTINED)
            return True
        self._forget_incoming(room, holding)
        return False

    def writer_stopped(self, room: bytes, epoch: int) -> None:
        """The peer will never again write into (room, epoch); epoch 0 means any. Idempotent."""
        holding = self._rooms.get(room)
        if holding is None or not holding.epoch or epoch not in (0, holding.epoch):
            return
        if holding.incoming_state is _S.QUARANTINED:
            self._forget_incoming(room, holding)
        else:
            holding.writer_stopped = True

    def flush_cache(self) -> int:
        """Forget every cached page and every name; how many pages became free."""
        num_flushed = len(self._cached)
        for page in list(self._cached):
            self._evict(page)
        for page in self._hash_of_page:
            self._cached.forget(page)
        self._page_of_hash.clear()
        self._hash_of_page.clear()
        return num_flushed

    # --- inner moves ---------------------------------------------------------------------------

    def _holding(self, room: bytes) -> _Holding:
        holding = self._rooms.get(room)
        if holding is None:
            raise LedgerError(f"room {room.hex()} holds no page")
        return holding

    def _must_be_new(self, room: bytes) -> None:
        if room in self._rooms:
            raise LedgerError(f"room {room.hex()} holds pages already")

    def _draw(self, room: bytes, num_new: int, state: PageState) -> list[int]:
        """Free pages first, then the oldest cached ones; the caller checked that there are enough."""
        while len(self._free) < num_new:
            self._evict(next(iter(self._cached)))
        pages = [self._free.popitem(last=False)[0] for _ in range(num_new)]
        for page in pages:
            self._holders[page] = {room: state}
        self._counts[_S.FREE] -= num_new
        self._counts[state] += num_new
        return pages

    def _evict(self, page: int) -> None:
        self._cached.forget(page)
        name = self._hash_of_page.pop(page)
        del self._page_of_hash[name]
        self._free[page] = None
        self._counts[_S.CACHED] -= 1
        self._counts[_S.FREE] += 1

    def _hold(self, page: int, room: bytes, state: PageState) -> None:
        before = self.state_of(page)
        self._cached.remove(page)
        self._holders.setdefault(page, {})[room] = state
        self._recount(page, before)

    def _drop(self, page: int, room: bytes) -> None:
        before = self.state_of(page)
        holders = self._holders[page]
        del holders[room]
        if not holders:
            del self._holders[page]
            if page in self._hash_of_page:
                self._cached.add(page)
            else:
                self._free[page] = None
        self._recount(page, before)

    def _recount(self, page: int, before: PageState) -> None:
        self._counts[before] -= 1
        self._counts[self.state_of(page)] += 1

    def _move_incoming(self, room: bytes, holding: _Holding, state: PageState) -> None:
        self._counts[holding.incoming_state] -= len(holding.incoming)
        self._counts[state] += len(holding.incoming)
        for page in holding.incoming:
            self._holders[page][room] = state
        holding.incoming_state = state

    def _forget_incoming(self, room: bytes, holding: _Holding) -> None:
        for page in reversed(holding.incoming):
            self._drop(page, room)
        del self._rooms[room]

    # --- checking ------------------------------------------------------------------------------

    def validate(self) -> None:
        """Re-derive everything from the rooms; raises LedgerError at the first difference."""
        holders: dict[int, dict[bytes, PageState]] = {}
        for room, holding in self._rooms.items():
            for page in holding.pages:
                holders.setdefault(page, {})[room] = holding.state
            for page in holding.incoming:
                holders.setdefault(page, {})[room] = holding.incoming_state
        if holders != self._holders:
            raise LedgerError("holders of pages differ from the rooms' pages")
        for page, by_room in holders.items():
            if len(by_room) > 1 and any(state in _INCOMING for state in by_room.values()):
                raise LedgerError(f"page {page} is incoming and shared")
            if page in self._free or page in self._cached:
                raise LedgerError(f"page {page} is held and to be had")
        counts = Counter(self.state_of(page) for page in range(self._num_pages))
        if +counts != +self._counts or sum(counts.values()) != self._num_pages:
            raise LedgerError(f"counts {self._counts} but the pages say {counts}")
        if {p: h for h, p in self._page_of_hash.items()} != self._hash_of_page:
            raise LedgerError("names and pages of the cache differ")
        if not set(self._cached) <= self._hash_of_page.keys():
            raise LedgerError("a cached page has no name")
        if not self._cached.validate():
            raise LedgerError("pages that are kept are queued with others")

"""Random walks through the page ledger beside a model that is too simple to be wrong."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv_transfer.ledger import PageLedger, PageState
from tests.support.cores import machine_settings

NUM_PAGES = 7
ROOMS = [bytes([i]) * 16 for i in range(5)]
NAMES = [bytes([i]) * 16 for i in range(6)]

rooms, sizes = st.sampled_from(ROOMS), st.integers(0, 4)


class LedgerMachine(RuleBasedStateMachine):
    """The model knows each room's phase and epoch, and which pages a peer may write."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PageLedger(NUM_PAGES)
        self.phase: dict[bytes, str] = {}
        self.epochs: dict[bytes, int] = {}
        self.stopped: set[bytes] = set()
        self.writable: dict[bytes, set[int]] = {}

    def of_phase(self, *phases: str) -> list[bytes]:
        return sorted(room for room, phase in self.phase.items() if phase in phases)

    def unused(self) -> list[bytes]:
        return [room for room in ROOMS if room not in self.phase]

    @precondition(lambda self: self.unused())
    @rule(data=st.data(), prefix=sizes, num_new=sizes, incoming=st.booleans())
    def begin(self, data: st.DataObject, prefix: int, num_new: int, incoming: bool) -> None:
        room = data.draw(st.sampled_from(self.unused()))
        pages = self.ledger.lookup(NAMES[:prefix])
        before = self.ledger.counts()
        fits = self.ledger.can_take(pages, num_new)
        begin = self.ledger.reserve if incoming else self.ledger.take
        got = begin(room, pages, num_new)
        assert (got is not None) == fits
        if got is None:
            assert self.ledger.counts() == before
            return
        self.phase[room] = "reserved" if incoming else "in_use"
        assert self.ledger.pages_of(room)[: len(pages)] == tuple(pages)
        assert len(self.ledger.pages_of(room)) == len(pages) + num_new
        if isinstance(got, int):
            assert got > max(self.epochs.values(), default=0)
            self.epochs[room] = got

    @precondition(lambda self: self.of_phase("reserved"))
    @rule(data=st.data())
    def expose(self, data: st.DataObject) -> None:
        room = data.draw(st.sampled_from(self.of_phase("reserved")))
        self.writable[room] = set(self.ledger.expose(room))
        self.phase[room] = "writing"

    @precondition(lambda self: self.of_phase("writing"))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        room = data.draw(st.sampled_from(self.of_phase("writing")))
        before = self.ledger.pages_of(room)
        assert self.ledger.commit(room, self.epochs[room]) == before
        del self.writable[room]
        self.phase[room] = "in_use"

    @precondition(lambda self: self.of_phase("in_use"))
    @rule(data=st.data(), num_new=sizes)
    def grow(self, data: st.DataObject, num_new: int) -> None:
        room = data.draw(st.sampled_from(self.of_phase("in_use")))
        available = self.ledger.num_available
        fresh = self.ledger.grow(room, num_new)
        assert (fresh is not None) == (num_new <= available)

    @precondition(lambda self: self.of_phase("in_use"))
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        room = data.draw(st.sampled_from(self.of_phase("in_use")))
        self.ledger.lease(room)
        self.phase[room] = "leased"

    @precondition(lambda self: self.of_phase("in_use", "leased"))
    @rule(data=st.data())
    def name_blocks(self, data: st.DataObject) -> None:
        room = data.draw(st.sampled_from(self.of_phase("in_use", "leased")))
        for index in range(min(len(self.ledger.pages_of(room)), len(NAMES))):
            self.ledger.name_block(room, index, NAMES[index])

    @rule(room=rooms)
    def release(self, room: bytes) -> None:
        quarantined = self.ledger.release(room)
        writing = self.phase.get(room) == "writing" and room not in self.stopped
        assert quarantined == bool(writing and self.writable[room])
        if quarantined:
            self.phase[room] = "quarantined"
        elif self.phase.get(room) != "quarantined":
            self.forget(room)

    @rule(room=rooms, right_epoch=st.booleans())
    def writer_stopped(self, room: bytes, right_epoch: bool) -> None:
        epoch = self.epochs.get(room, 1) + (0 if right_epoch else 1)
        self.ledger.writer_stopped(room, epoch)
        if not right_epoch:
            return
        if self.phase.get(room) == "quarantined":
            self.forget(room)
        elif self.phase.get(room) in ("reserved", "writing"):
            self.stopped.add(room)

    @precondition(lambda self: self.of_phase("in_use", "leased"))
    @rule(data=st.data(), until=st.integers(0, 9))
    def keep(self, data: st.DataObject, until: int) -> None:
        self.ledger.keep(data.draw(st.sampled_from(self.of_phase("in_use", "leased"))), until)

    @rule(now=st.integers(0, 9))
    def end_keeping(self, now: int) -> None:
        before = self.ledger.counts()
        self.ledger.end_keeping(now)
        assert self.ledger.counts() == before

    @rule()
    def flush(self) -> None:
        num_cached = self.ledger.counts()["cached"]
        assert self.ledger.flush_cache() == num_cached

    def forget(self, room: bytes) -> None:
        self.phase.pop(room, None)
        self.writable.pop(room, None)
        self.stopped.discard(room)

    @invariant()
    def whole(self) -> None:
        self.ledger.validate()
        assert set(self.ledger.rooms()) == set(self.phase)
        assert sum(self.ledger.counts().values()) == NUM_PAGES

    @invariant()
    def a_writable_page_is_nobody_elses(self) -> None:
        for room, pages in self.writable.items():
            states = {self.ledger.state_of(page) for page in pages}
            assert states <= {PageState.WRITING, PageState.QUARANTINED}
            for other in self.ledger.rooms():
                assert other == room or not pages & set(self.ledger.pages_of(other))


LedgerMachine.TestCase.settings = machine_settings(150)
TestLedgerMachine = LedgerMachine.TestCase

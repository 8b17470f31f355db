"""The transfer pump over the fake transport: threads, but no sockets and no libraries."""

import threading
from collections.abc import Callable, Iterator

import pytest

from bootstrap.errors import TransferError
from kv_transfer import pump as pump_module
from kv_transfer.backends.fake import FakeBackend
from kv_transfer.backends.faults import Drop, FaultPlan, Hold, Reorder
from kv_transfer.layout import Run
from kv_transfer.pump import TransferPump
from tests.support.waiting import wait_for

SIZE = 4096
RUN = Run(0, 64, 128)


class Outcomes:
    """What the pump reported, in order, with the thread that did."""

    def __init__(self) -> None:
        self.events: list[tuple[object, str | None]] = []
        self.threads: set[str] = set()

    def __call__(self, tag: object, error: str | None) -> None:
        self.threads.add(threading.current_thread().name)
        self.events.append((tag, error))  # last: tests wait for it

    def marker(self, name: str) -> Callable[[], None]:
        """An `on_done` that records `name` among the outcomes."""
        return lambda: self(name, None)

    def wait(self, count: int) -> list[tuple[object, str | None]]:
        """The events, once there are `count`."""
        wait_for(lambda: len(self.events) >= count, what=f"{count} events, have {self.events}")
        return self.events


class Rig:
    """A started pump, its backend, and one peer that it knows."""

    def __init__(self, plan: FaultPlan | None = None) -> None:
        self.outcomes = Outcomes()
        self.backend = FakeBackend("source-1", plan)
        self.view = self.backend.allocate(SIZE)
        self.view[:] = bytes(i % 251 for i in range(SIZE))
        self.peer = FakeBackend("target-1")
        self.peer_view = self.peer.allocate(SIZE)
        self.pump = TransferPump(self.backend, self.outcomes)
        self.pump.add_peer(self.peer.metadata())
        self.pump.start()

    def submit(self, tag: object, run: Run = RUN, agent_name: str = "target-1") -> None:
        self.pump.submit(tag, agent_name, [run])

    def close(self) -> None:
        self.pump.stop()
        self.peer.close()


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(plan: FaultPlan | None = None) -> Rig:
        rigs.append(Rig(plan))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed peer's writes end by themselves, however slow this machine is."""
    monkeypatch.setattr(pump_module, "LEAVE_GRACE_S", 300.0)


def test_write_lands_and_is_reported_on_the_pumps_thread(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.submit("a")
    assert rig.outcomes.wait(1) == [("a", None)]
    assert rig.peer_view[64:192] == rig.view[0:128]
    assert bytes(rig.peer_view[192:200]) == bytes(8)
    assert rig.outcomes.threads == {"transfer-pump"}
    stats = rig.pump.stats()
    assert (stats["num_writes"], stats["num_failed"], stats["written_bytes"]) == (1, 0, 128)
    assert stats["in_flight_s"] > 0


def test_every_submit_has_one_outcome(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(FaultPlan({3: Reorder()}))
    for tag in range(50):
        rig.submit(tag, Run(tag * 64, tag * 64, 64))
    events = rig.outcomes.wait(50)
    assert len(events) == 50
    assert {tag for tag, _ in events} == set(range(50))
    assert all(error is None for _, error in events)
    assert rig.peer_view[: 50 * 64] == rig.view[: 50 * 64]


def test_refusals_are_outcomes(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.submit("unknown", agent_name="nobody-1")
    rig.submit("outside", Run(0, SIZE, 1))
    rig.pump.submit("empty", "target-1", [])
    events = dict(rig.outcomes.wait(3))
    assert "nobody-1" in str(events["unknown"])
    assert "out of bounds" in str(events["outside"])
    assert events["empty"] is not None
    assert rig.pump.stats()["num_failed"] == 3


def test_why_a_peer_was_refused_is_told_by_its_writes(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    gone = FakeBackend("gone-1")
    gone.allocate(SIZE)
    metadata = gone.metadata()
    gone.close()
    rig.pump.add_peer(metadata)
    rig.submit("x", agent_name="gone-1")
    ((_, error),) = rig.outcomes.wait(1)
    assert "unknown peer gone-1: " in str(error)
    assert len(str(error)) > len("unknown peer gone-1: ")


@pytest.mark.usefixtures("long_grace")
def test_removal_waits_for_the_peers_writes(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(FaultPlan({0: Hold()}))
    rig.submit("held")
    rig.pump.remove_peer("target-1", rig.outcomes.marker("gone"))
    rig.submit("late")
    ((tag, error),) = rig.outcomes.wait(1)
    assert tag == "late"
    assert "being removed" in str(error)
    rig.backend.release(0)
    assert rig.outcomes.wait(3)[1:] == [("held", None), ("gone", None)]
    rig.submit("after")
    assert "unknown peer" in str(rig.outcomes.wait(4)[3][1])


def test_removal_ends_writes_that_do_not_end(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "LEAVE_GRACE_S", 0.02)
    rig = make_rig(FaultPlan({0: Drop()}))
    rig.submit("lost")
    rig.pump.remove_peer("target-1", rig.outcomes.marker("gone"))
    assert rig.outcomes.wait(2) == [("lost", "peer was removed"), ("gone", None)]
    assert bytes(rig.peer_view) == bytes(SIZE)


@pytest.mark.usefixtures("long_grace")
def test_peer_that_returns_while_leaving_is_known_again(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(FaultPlan({0: Hold()}))
    rig.submit("held")
    rig.pump.remove_peer("target-1", rig.outcomes.marker("gone"))
    rig.pump.add_peer(rig.peer.metadata())
    rig.backend.release(0)
    rig.outcomes.wait(2)
    rig.submit("again")
    assert rig.outcomes.wait(3) == [("held", None), ("gone", None), ("again", None)]


def test_unknown_peer_is_removed_at_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.pump.remove_peer("nobody-1", rig.outcomes.marker("gone"))
    rig.pump.remove_peer("nobody-2")
    assert rig.outcomes.wait(1) == [("gone", None)]


@pytest.mark.usefixtures("long_grace")
def test_stop_ends_every_write_and_removal(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(FaultPlan({0: Drop(), 1: Drop()}))
    rig.submit("a")
    rig.submit("b")
    rig.pump.remove_peer("target-1", rig.outcomes.marker("gone"))
    rig.pump.stop()
    rig.pump.stop()
    events = rig.outcomes.events
    assert {tag for tag, _ in events} == {"a", "b", "gone"}
    assert len(events) == 3
    assert all("stopped" in str(error) for tag, error in events if tag != "gone")
    with pytest.raises(TransferError):
        rig.submit("c")
    rig.pump.remove_peer("target-1", rig.outcomes.marker("gone again"))
    assert rig.outcomes.events[-1] == ("gone again", None)


def test_stop_without_start_strands_nobody() -> None:
    outcomes = Outcomes()
    backend = FakeBackend("source-1")
    backend.allocate(SIZE)
    pump = TransferPump(backend, outcomes)
    pump.submit("early", "target-1", [RUN])
    pump.stop()
    assert outcomes.events == [("early", "the transfer pump has stopped")]


class Helped(FakeBackend):
    """A fake whose target must help, and counts how often it did."""

    needs_target_progress = True

    def __init__(self) -> None:
        super().__init__("helped-1")
        self.num_helped = 0

    def progress(self) -> None:
        self.num_helped += 1


def test_target_helps_only_while_inbound_is_open() -> None:
    outcomes = Outcomes()
    backend = Helped()
    backend.allocate(SIZE)
    pump = TransferPump(backend, outcomes)
    pump.start()
    pump.open_inbound()
    pump.open_inbound()
    pump.close_inbound()
    seen = wait_for(lambda: backend.num_helped)
    wait_for(lambda: backend.num_helped > seen + 3)
    pump.close_inbound()
    pump.submit("closed", "nobody-1", [RUN])
    outcomes.wait(1)
    helped = backend.num_helped
    threading.Event().wait(0.05)
    assert backend.num_helped == helped
    pump.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_broken_callback_strands_no_other_write() -> None:
    outcomes = Outcomes()

    def on_outcome(tag: object, error: str | None) -> None:
        outcomes(tag, error)
        if tag == "bad":
            raise ValueError(tag)

    backend = FakeBackend("source-1", FaultPlan({0: Drop()}))
    backend.allocate(SIZE)
    peer = FakeBackend("target-1")
    peer.allocate(SIZE)
    pump = TransferPump(backend, on_outcome)
    pump.add_peer(peer.metadata())
    pump.start()
    pump.submit("other", "target-1", [RUN])
    pump.submit("bad", "target-1", [RUN])
    assert [tag for tag, _ in outcomes.wait(2)] == ["bad", "other"]
    pump.stop()
    with pytest.raises(TransferError):
        pump.submit("late", "target-1", [RUN])
    peer.close()

"""Every fault of the fake transport, and how backends are chosen by name."""

import sys
from collections.abc import Iterator

import pytest

from bootstrap.errors import ConfigError, TransferError
from kv_transfer.backends.fake import FakeBackend
from kv_transfer.backends.faults import (
    Corrupt,
    Delay,
    Drop,
    Fault,
    FaultPlan,
    Hold,
    Reorder,
    Repeat,
    Truncate,
)
from kv_transfer.backends.port import WriteOutcome
from kv_transfer.backends.registry import make_backend
from kv_transfer.layout import Run

SIZE = 1024
RUNS = [Run(0, 512, 100), Run(200, 700, 100)]


class Pair:
    """Two backends of one process; `plan` is the source's."""

    def __init__(self, *faults: Fault | None) -> None:
        plan = FaultPlan({i: fault for i, fault in enumerate(faults) if fault is not None})
        self.source = FakeBackend("source-1", plan)
        self.here = self.source.allocate(SIZE)
        self.here[:] = bytes(1 + i % 250 for i in range(SIZE))
        self.target = FakeBackend("target-1")
        self.there = self.target.allocate(SIZE)
        self.source.add_peer(self.target.metadata())

    def landed(self) -> bytes:
        """What is where the runs go."""
        return bytes(self.there[512:612]) + bytes(self.there[700:800])

    def expected(self) -> bytes:
        """What the runs carry."""
        return bytes(self.here[0:100]) + bytes(self.here[200:300])


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made: list[Pair] = []
    yield made
    for pair in made:
        pair.source.close()
        pair.target.close()


def start(pairs: list[Pair], *faults: Fault | None) -> tuple[Pair, int]:
    """A pair with the plan, and its first write begun."""
    pair = Pair(*faults)
    pairs.append(pair)
    return pair, pair.source.write("target-1", RUNS)


def test_faithful_write_lands_in_poll(pairs: list[Pair]) -> None:
    pair, write_id = start(pairs)
    assert pair.landed() == bytes(200)
    assert pair.source.poll() == [WriteOutcome(write_id)]
    assert pair.landed() == pair.expected()
    assert pair.source.poll() == []


def test_delay(pairs: list[Pair]) -> None:
    pair, write_id = start(pairs, Delay(2))
    assert pair.source.poll() == pair.source.poll() == []
    assert pair.landed() == bytes(200)
    assert pair.source.poll() == [WriteOutcome(write_id)]


def test_hold(pairs: list[Pair]) -> None:
    pair, write_id = start(pairs, Hold())
    assert [pair.source.poll() for _ in range(5)] == [[]] * 5
    pair.source.release(write_id)
    assert pair.source.poll() == [WriteOutcome(write_id)]
    assert pair.landed() == pair.expected()


def test_drop_ends_with_its_peer(pairs: list[Pair]) -> None:
    pair, write_id = start(pairs, Drop())
    assert [pair.source.poll() for _ in range(5)] == [[]] * 5
    pair.source.remove_peer("target-1")
    ((outcome),) = pair.source.poll()
    assert outcome.write_id == write_id
    assert outcome.error is not None
    assert pair.landed() == bytes(200)


def test_repeat_brings_the_old_bytes_again(pairs: list[Pair]) -> None:
    pair, write_id = start(pairs, Repeat(2))
    old = pair.expected()
    assert pair.source.poll() == [WriteOutcome(write_id)]
    pair.here[:] = bytes(SIZE)
    pair.there[:] = bytes(SIZE)
    assert pair.source.poll() == []
    assert pair.landed() == bytes(200)
    assert pair.source.poll() == []
    assert pair.landed() == old


def test_reorder(pairs: list[Pair]) -> None:
    pair, first = start(pairs, Reorder())
    assert pair.source.poll() == []
    second = pair.source.write("target-1", [Run(300, 512, 100)])
    outcomes = [*pair.source.poll(), *pair.source.poll()]
    assert outcomes == [WriteOutcome(second), WriteOutcome(first)]
    assert pair.landed() == pair.expected()


@pytest.mark.parametrize("error", [None, "lost"])
def test_truncate(pairs: list[Pair], error: str | None) -> None:
    pair, write_id = start(pairs, Truncate(130, error))
    assert pair.source.poll() == [WriteOutcome(write_id, error)]
    assert pair.landed() == pair.expected()[:130] + bytes(70)


@pytest.mark.parametrize("offset", [0, 99, 100, 199])
def test_corrupt(pairs: list[Pair], offset: int) -> None:
    pair, write_id = start(pairs, Corrupt(offset))
    assert pair.source.poll() == [WriteOutcome(write_id)]
    wrong = [i for i in range(200) if pair.landed()[i] != pair.expected()[i]]
    assert wrong == [offset]


def test_closed_peer_takes_no_write(pairs: list[Pair]) -> None:
    pair, write_id = start(pairs)
    pair.target.close()
    ((outcome),) = pair.source.poll()
    assert outcome.write_id == write_id
    assert outcome.error is not None
    assert pair.landed() == bytes(200)


def test_arena_of_another_name_is_refused(pairs: list[Pair]) -> None:
    pair, _ = start(pairs)
    impostor = FakeBackend("impostor-1")
    impostor.allocate(SIZE)
    theirs = impostor.metadata()
    impostor.close()
    with pytest.raises(TransferError, match="impostor-1"):
        pair.source.add_peer(theirs)


def test_unknown_backend_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"pigeon.*nixl, mooncake, fake"):
        make_backend("pigeon", "x-1", "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "module", "remedy"),
    [
        ("nixl", "nixl", "pip install nixl"),
        ("mooncake", "mooncake.engine", "mooncake-transfer-engine-non-cuda.*libibverbs1"),
    ],
)
def test_missing_library_is_a_config_error_with_the_remedy(
    name: str, module: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=remedy):
        make_backend(name, "x-1", "127.0.0.1")

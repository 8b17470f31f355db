"""What a signal does to a command, wherever it is."""

import os
import signal
from collections.abc import Iterator

import pytest

from cluster.signals import Stopped, StopSignals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield StopSignals()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_asks_and_the_second_insists(signals: StopSignals, number: int) -> None:
    assert not signals.wait(0.0)
    os.kill(os.getpid(), number)
    assert signals.wait(0.0)
    assert signals.stopping
    assert not signals.insisted
    with pytest.raises(Stopped):
        signals.check()
    os.kill(os.getpid(), number)
    assert signals.insisted


def test_it_raises_only_where_that_is_wanted(signals: StopSignals) -> None:
    signals.raising = True
    with pytest.raises(Stopped):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_library_cannot_take_the_signals(signals: StopSignals) -> None:
    with signals.kept():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.stopping
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

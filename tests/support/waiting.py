"""Waiting for a condition with a deadline; tests never sleep to synchronise."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout_s: float = 60.0, what: str = "condition") -> T:
    """The first true value of `condition`; fails after `timeout_s`, telling the last value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s} s; last value {value!r}")
        time.sleep(0.02)

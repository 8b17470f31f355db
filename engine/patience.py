"""How long the next in a queue lets others pass: until it was passed so often, or waited so long.

Pure. A large request that waits for pages need not hold up small ones that fit beside it; but were
small ones always let by, the pages would never add up for the large one. So passing is bounded, and
after that every page that comes back is for the next in line.
"""

MAX_PASSED = 16
MAX_PASSED_S = 5.0


class Patience:
    """Belongs to one queue. What is counted is about its present head; a new head starts afresh."""

    def __init__(self, max_passed: int = MAX_PASSED, max_passed_s: float = MAX_PASSED_S) -> None:
        self._max_passed = max_passed
        self._max_passed_s = max_passed_s
        self._head: bytes | None = None
        self._num_passed = 0
        self._since = 0.0

    def waits(self, head: bytes, now: float) -> None:
        """It is the turn of `head`, and it does not fit."""
        if head != self._head:
            self._head, self._num_passed, self._since = head, 0, now

    def may_pass(self, head: bytes, now: float) -> bool:
        """Whether somebody else may go before `head`: freely, until it was its turn and it did not fit."""
        if head != self._head:
            return True
        return self._num_passed < self._max_passed and now - self._since < self._max_passed_s

    def passed(self, head: bytes) -> None:
        """Somebody else went before `head`."""
        self._num_passed += head == self._head

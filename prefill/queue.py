"""Prompts that hold no page yet, and which of them may begin.

Pure; knows order and patience, not pages or budgets.
"""

from collections.abc import Iterator
from itertools import islice

from engine.patience import Patience
from prefill.request import PrefillRequest

LOOKAHEAD = 16  # prompts that are looked at for one that may begin


class PrefillQueue:
    """In order of arrival. The head may always begin; those behind it only while its patience lasts.

    A head that just waits for the oldest prompt to end is passed freely: that one goes on in every step,
    whoever begins. Once it is its turn and it lacks pages it is passed `engine.patience.MAX_PASSED` times
    at most, and each that was before it is gone by then: nobody starves. Who may begin takes all its
    pages at once or none, and holds none while it waits: whoever begins out of turn can delay the head,
    never block it.
    """

    def __init__(self) -> None:
        self._waiting: dict[bytes, PrefillRequest] = {}
        self._patience = Patience()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PrefillRequest]:
        return iter(self._waiting.values())

    def __contains__(self, request: object) -> bool:
        return isinstance(request, PrefillRequest) and request.room in self._waiting

    def append(self, request: PrefillRequest) -> None:
        """A new prompt."""
        self._waiting[request.room] = request

    def ahead(self) -> list[PrefillRequest]:
        """Those to look at, in order."""
        return list(islice(self, LOOKAHEAD))

    def may_begin(self, request: PrefillRequest, now: float) -> bool:
        """Whether it is the turn of `request`, or it may go before the one whose turn it is."""
        head = next(iter(self._waiting))
        return request.room == head or self._patience.may_pass(head, now)

    def lacks_pages(self, request: PrefillRequest, now: float) -> None:
        """It could not begin. If it is its turn, it waits from now on."""
        head = next(iter(self._waiting))
        if request.room == head:
            self._patience.waits(head, now)

    def begin(self, request: PrefillRequest) -> None:
        """It got its pages."""
        head = next(iter(self._waiting))
        if request.room != head:
            self._patience.passed(head)
        self.remove(request)

    def remove(self, request: PrefillRequest) -> None:
        """It waits no more."""
        del self._waiting[request.room]

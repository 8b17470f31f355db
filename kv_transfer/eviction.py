"""Which cached page is given up first. Pure; knows neither names nor rooms.

A page may be kept for somebody who is likely to come back for it: others go before it. It is no promise:
when nothing else is left kept pages go too, the oldest first, so keeping never takes capacity from anyone.
"""

from collections import OrderedDict
from collections.abc import Iterator


class EvictionOrder:
    """Invariant: a cached page is in exactly one of the two queues; which, `_until` says."""

    def __init__(self) -> None:
        self._plain: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._until: dict[int, float] = {}  # pages that are kept, whether cached or in use

    def __len__(self) -> int:
        return len(self._plain) + len(self._kept)

    def __contains__(self, page: object) -> bool:
        return page in self._plain or page in self._kept

    def __iter__(self) -> Iterator[int]:
        """First the one to give up first."""
        yield from self._plain
        yield from self._kept

    def add(self, page: int) -> None:
        """The page is cached from now on, and the youngest of its kind."""
        (self._kept if page in self._until else self._plain)[page] = None

    def remove(self, page: int) -> None:
        """The page is in use again; that it is kept is remembered. Unknown: no-op."""
        self._plain.pop(page, None)
        self._kept.pop(page, None)

    def forget(self, page: int) -> None:
        """The page's content is gone."""
        self.remove(page)
        self._until.pop(page, None)

    def keep(self, page: int, until: float) -> None:
        """Give up others before this page; the latest `until` counts."""
        self._until[page] = max(until, self._until.get(page, until))
        if page in self._plain:
            del self._plain[page]
            self._kept[page] = None

    def end_keeping(self, now: float) -> None:
        """Pages whose time is over are like any other, and the youngest of them."""
        for page in [page for page, until in self._until.items() if until <= now]:
            del self._until[page]
            if page in self._kept:
                del self._kept[page]
                self._plain[page] = None

    def validate(self) -> bool:
        """Whether both queues agree with what is kept."""
        return (
            self._kept.keys() <= self._until.keys() and not self._plain.keys() & self._until.keys()
        )

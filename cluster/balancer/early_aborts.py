"""Requests that were aborted before they came: an abort may overtake its request on the way."""

from collections import OrderedDict

TTL_S = 300.0
MAX_REMEMBERED = 4096


class EarlyAborts:
    """Remembers each id for TTL_S, and the MAX_REMEMBERED last ones at most. Pure."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()  # soonest first

    def __len__(self) -> int:
        return len(self._until)

    def add(self, answer_id: str, now: float) -> None:
        """The request is not wanted, should it come."""
        self._until.pop(answer_id, None)
        self._until[answer_id] = now + TTL_S
        while len(self._until) > MAX_REMEMBERED or next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)

    def take(self, answer_id: str, now: float) -> bool:
        """Whether the request that comes now was aborted; it is forgotten with that."""
        return self._until.pop(answer_id, now) > now

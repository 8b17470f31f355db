"""Where a mailbox's messages leave: one DEALER per peer inbox, opened at first use.

Used by one thread only. It knows frames and endpoints, not messages.
"""

import zmq

from bootstrap import sockets
from bootstrap.security import Security

IDLE_S = 60.0
MAX_OUTLETS = 4096


class Outbox:
    """At most MAX_OUTLETS sockets, in order of last use; the longest unused one makes room.

    Who is known dead is forgotten; who only fell silent is not, so sockets unused for IDLE_S close.
    """

    def __init__(self, context: sockets.Context, security: Security | None) -> None:
        self._context = context
        self._security = security
        self._outlets: dict[str, sockets.Socket] = {}
        self._used_at: dict[str, float] = {}  # same keys, longest unused first

    def send(self, endpoint: str, frame: bytes, now: float) -> bool:
        """Queue `frame`; False when the peer's queue is full. Raises zmq.ZMQError for no address."""
        outlet = self._outlets.get(endpoint)
        if outlet is None:
            if len(self._outlets) >= MAX_OUTLETS:
                self.forget(next(iter(self._used_at)))
            outlet = sockets.open_outlet(self._context, endpoint, self._security)
            self._outlets[endpoint] = outlet
        self._used_at.pop(endpoint, None)
        self._used_at[endpoint] = now
        try:
            outlet.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def forget(self, endpoint: str) -> None:
        """Close the socket to `endpoint` and drop what it still queues."""
        outlet = self._outlets.pop(endpoint, None)
        self._used_at.pop(endpoint, None)
        if outlet is not None:
            outlet.close(linger=0)

    def close_idle(self, now: float) -> None:
        """Close what was not used for IDLE_S."""
        while self._used_at:
            endpoint, used_at = next(iter(self._used_at.items()))
            if now - used_at < IDLE_S:
                return
            self.forget(endpoint)

    def close(self) -> None:
        """Close all; last messages may leave for as long as sockets linger."""
        for outlet in self._outlets.values():
            outlet.close()
        self._outlets.clear()
        self._used_at.clear()

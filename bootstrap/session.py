"""What a client says to the bootstrap service, and when.

Pure: messages and the time go in; messages to send, a time to speak next and membership events come
out. The directory holds what the service said; this holds where the client stands with it.
"""

from bootstrap.directory import Directory, DirectoryEvent, Fenced
from bootstrap.identity import WorkerRef
from bootstrap.membership import (
    BalancerInfo,
    Heartbeat,
    Register,
    RegisterAgain,
    Registered,
    Subscribed,
    WorkerInfo,
    WorkerLoad,
)
from bootstrap.messages import Message

DEFAULT_LEASE_S = 2.5  # until the service has told its own
BEATS_PER_LEASE = 5
RETRY_S = 0.1  # after what could not be sent, and at least between any two beats


class Session:
    """Speaks in beats: one registration or heartbeat, and one renewal of the subscription.

    `due_at` is when the next beat is due. A fenced client has nothing more to say.
    """

    def __init__(self, info: WorkerInfo | BalancerInfo | None, now: float) -> None:
        """Without `info` the client only subscribes. All but engines hear members' loads too.

        `now` counts as the process's birth.
        """
        self.directory = Directory()
        self.due_at = now
        self.fenced = False
        self._info = info
        self._born_at = now
        self._registered = False
        self._sent: WorkerInfo | BalancerInfo | None = None  # in the last registration
        self._lease_s = DEFAULT_LEASE_S
        self._beaten_at = float("-inf")
        self._heard_at = float("-inf")

    @property
    def ready(self) -> bool:
        """Whether the client is registered, if it registers, and knows the members."""
        return (self._registered or self._info is None) and not self.directory.needs_snapshot

    def connected(self, now: float) -> bool:
        """Whether the service was heard within the last lease."""
        return now - self._heard_at < self._lease_s

    def beat(self, load: WorkerLoad, now: float) -> list[Message]:
        """What to send now."""
        if self.fenced:
            return []
        self._beaten_at, self.due_at = now, now + self._lease_s / BEATS_PER_LEASE
        renewal = self.directory.subscription(loads=not isinstance(self._info, WorkerInfo))
        if self._info is None:
            return [renewal]
        if self._registered:
            return [Heartbeat(load), renewal]
        self._sent = self._info
        return [Register(self._info, now - self._born_at, load), renewal]

    def change(self, info: WorkerInfo | BalancerInfo) -> None:
        """Register with other facts at the next beat, which is due at once."""
        self._info, self._registered = info, False
        self._hurry()

    def unsent(self, now: float) -> None:
        """A beat did not get out: try again soon."""
        self.due_at = min(self.due_at, now + RETRY_S)

    def receive(self, service: WorkerRef, message: Message, now: float) -> list[DirectoryEvent]:
        """Take in one message of the service's life `service`."""
        self._heard_at = now
        if isinstance(message, Registered | Subscribed):
            self._lease_s = message.lease_s
        if isinstance(message, Registered):
            self._registered = self._sent is self._info  # else it answers an earlier one
            return []
        if isinstance(message, RegisterAgain):
            self._registered = False
            self._hurry()
            return []
        missed_nothing = not self.directory.needs_snapshot
        events = self.directory.apply(service, message, now)
        if missed_nothing and self.directory.needs_snapshot:
            self._hurry()
        if any(isinstance(event, Fenced) for event in events):
            events = [] if self.fenced else events
            self.fenced, self.due_at = True, float("inf")
        return events

    def tick(self, now: float) -> list[DirectoryEvent]:
        """Members whose grace after a restart of the service is over, while it is heard."""
        return self.directory.tick(now) if self.connected(now) else []

    def _hurry(self) -> None:
        self.due_at = min(self.due_at, self._beaten_at + RETRY_S)

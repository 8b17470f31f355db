"""Who waits for an engine, and whose turn it is: fair between tenants, first come first served within.

Pure; knows keys, tenants and tokens, not what a request is. A tenant is whoever shares an API key.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

SHARE = 3  # a tenant may hold so many times what it leaves free


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue. Keys only grow. `cost` is what it will take in all, in tokens, as far
    as known; `is_large` says which of two lanes it goes by: each may be open while the other is not."""

    key: int
    tenant: str
    num_prompt: int
    cost: int
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Most requests that wait, and most prompt tokens of them."""

    max_requests: int
    max_tokens: int


@dataclass(slots=True)
class _Tenant:
    """`served` is the virtual token counter. It is remembered while requests wait or run."""

    served: int
    small: dict[int, Waiting] = field(default_factory=dict)  # in order of arrival
    large: dict[int, Waiting] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    cost: int = 0
    num_running: int = 0

    @property
    def num_waiting(self) -> int:
        """In both lanes."""
        return len(self.small) + len(self.large)

    def lane(self, is_large: bool) -> dict[int, Waiting]:
        """One of the two."""
        return self.large if is_large else self.small


class _Lanes:
    """Which lanes are open in a round; asked again only after somebody was taken."""

    def __init__(self, is_open: Callable[[bool], bool]) -> None:
        self._is_open = is_open
        self.look()

    def look(self) -> None:
        self.open = tuple(is_large for is_large in (False, True) if self._is_open(is_large))


class _Turn:
    """A tenant's requests in order, of the lanes that are open when they are asked for."""

    def __init__(self, tenant: _Tenant, lanes: _Lanes) -> None:
        self._lanes = lanes
        self._left = {is_large: deque(tenant.lane(is_large)) for is_large in lanes.open}

    def next(self) -> int | None:
        """The oldest that was not offered yet."""
        left = [self._left[is_large] for is_large in self._lanes.open if self._left[is_large]]
        return min(left, key=lambda keys: keys[0]).popleft() if left else None


class FairQueue:
    """Turns go to the tenant that was served the fewest tokens: the virtual token counter of Sheng et
    al., "Fairness in Serving Large Language Models" (OSDI 2024).

    While two tenants wait, what they were served differs by no more than the cost of one request and
    what estimates were off by. Who comes anew starts level with the least served of those who wait, so
    having been idle earns nothing. Within a tenant the oldest goes first; one that nobody can take at
    present is passed, not waited for. A counter only ever grows by what was served and whoever waits
    is not served, so everybody's turn comes.

    `bounds` hold for those that never ran. Those that come back, because an attempt broke or an engine
    was full, have been admitted before: they go first and are always taken.
    """

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._tenants: dict[str, _Tenant] = {}
        self._tenant_of: dict[int, str] = {}
        self._back: dict[int, None] = {}
        self._running: dict[int, Waiting] = {}
        self._num_prompt_tokens = 0
        self._level = 0  # where who comes anew starts: what those who had their turns were served

    def __len__(self) -> int:
        return len(self._tenant_of) + len(self._back)

    def __contains__(self, key: int) -> bool:
        return key in self._tenant_of or key in self._back

    def waiting(self) -> list[int]:
        """Everybody who waits."""
        return [*self._back, *self._tenant_of]

    @property
    def num_prompt_tokens(self) -> int:
        """Of those that never ran."""
        return self._num_prompt_tokens

    # --- who gets in ---------------------------------------------------------------------------

    def refusal(self, tenant: str, num_requests: int, num_tokens: int) -> str | None:
        """Why so many more requests with so many prompt tokens do not fit, or None.

        A call that is larger than the bounds fits when nothing waits. A tenant with a name may fill
        three quarters of the queue alone, and the less the more others wait: somebody else always
        finds a place. The nameless tenant is everybody where there are no keys.
        """
        if not self._tenant_of:
            return None
        bounds, own = self._bounds, self._tenants.get(tenant)
        free_requests = bounds.max_requests - len(self._tenant_of) - num_requests
        free_tokens = bounds.max_tokens - self._num_prompt_tokens - num_tokens
        if free_requests < 0 or free_tokens < 0:
            return "Too many requests wait already."
        if tenant and own is not None and own.num_waiting:
            own_requests = own.num_waiting + num_requests
            own_tokens = own.num_prompt_tokens + num_tokens
            if own_requests > SHARE * free_requests or own_tokens > SHARE * free_tokens:
                return "Too many requests of this API key wait already."
        return None

    def cost_ahead(self, tenant: str) -> int:
        """Tokens that are served before a new request of `tenant`: all of its own, and of each other
        tenant's no more than those."""
        own = self._tenants.get(tenant)
        before = 0 if own is None else own.cost
        others = (t.cost for name, t in self._tenants.items() if name != tenant)
        return before + sum(min(before, cost) for cost in others)

    def add(self, waiting: Waiting) -> None:
        """A new request; whether it may wait was asked before."""
        tenant = self._tenants.get(waiting.tenant)
        if tenant is None or not tenant.num_waiting:
            active = [t.served for t in self._tenants.values() if t.num_waiting]
            level = min(active, default=self._level)
            if tenant is None:
                self._forget_idle(level)
                tenant = self._tenants[waiting.tenant] = _Tenant(level)
            tenant.served = max(tenant.served, level)
        tenant.lane(waiting.is_large)[waiting.key] = waiting
        tenant.num_prompt_tokens += waiting.num_prompt
        tenant.cost += waiting.cost
        self._tenant_of[waiting.key] = waiting.tenant
        self._num_prompt_tokens += waiting.num_prompt

    def come_back(self, key: int) -> None:
        """A request that had its turn needs another engine."""
        self._back[key] = None

    # --- whose turn it is ----------------------------------------------------------------------

    def serve(self, place: Callable[[int], bool], is_open: Callable[[bool], bool]) -> None:
        """Offer requests in order of their turns to `place`, which says whether an engine took one.

        Everybody in a lane that `is_open` says is open for the small or the large is offered once:
        what did not fit at its turn fits no better after others were taken.
        """
        lanes = _Lanes(is_open)
        for back in list(self._back):
            if self._running[back].is_large in lanes.open and place(back):
                self._back.pop(back, None)
                lanes.look()
        if not lanes.open:
            return
        turns = [
            (tenant.served, name, _Turn(tenant, lanes))
            for name, tenant in self._tenants.items()
            if tenant.num_waiting
        ]
        heapq.heapify(turns)
        while turns and lanes.open:
            served, name, turn = heapq.heappop(turns)
            key = turn.next()
            while key is not None and not (key in self._tenant_of and place(key)):
                key = turn.next()
            if key is not None:
                self._level = max(self._level, served)
                self._begin(key)
                heapq.heappush(turns, (self._tenants[name].served, name, turn))
                lanes.look()

    def _begin(self, key: int) -> None:
        waiting = self._leave(key)
        tenant = self._tenants[waiting.tenant]
        tenant.served += waiting.cost
        tenant.num_running += 1
        self._running[key] = waiting
        if not self._tenant_of:
            self._level = max(self._level, tenant.served)

    def end(self, key: int, num_tokens: int) -> None:
        """The request ended, wherever it was; it took `num_tokens` in all if it ran."""
        self._back.pop(key, None)
        if key in self._tenant_of:
            self._leave(key)
        elif key in self._running:
            waiting = self._running.pop(key)
            tenant = self._tenants[waiting.tenant]
            tenant.served += num_tokens - waiting.cost
            tenant.num_running -= 1

    def _forget_idle(self, level: int) -> None:
        """A tenant with nothing here and no debt is as good as new."""
        for name, tenant in list(self._tenants.items()):
            if not tenant.num_waiting and not tenant.num_running and tenant.served <= level:
                del self._tenants[name]

    def _leave(self, key: int) -> Waiting:
        tenant = self._tenants[self._tenant_of.pop(key)]
        waiting = tenant.small.pop(key) if key in tenant.small else tenant.large.pop(key)
        tenant.num_prompt_tokens -= waiting.num_prompt
        tenant.cost -= waiting.cost
        self._num_prompt_tokens -= waiting.num_prompt
        return waiting

    def validate(self) -> None:
        """Assert what must hold between events."""
        waiting = []
        for name, tenant in self._tenants.items():
            own = [*tenant.small.values(), *tenant.large.values()]
            waiting += own
            assert tenant.cost == sum(w.cost for w in own)
            assert tenant.num_prompt_tokens == sum(w.num_prompt for w in own)
            assert tenant.num_running == sum(w.tenant == name for w in self._running.values())
        assert {w.key: w.tenant for w in waiting} == self._tenant_of
        assert self._num_prompt_tokens == sum(w.num_prompt for w in waiting)
        assert not self._back.keys() & self._tenant_of.keys()
        assert self._back.keys() <= self._running.keys()

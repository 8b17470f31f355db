"""Who waits for an engine, and whose turn it is: fair between tenants, first come first served within.

Pure; knows keys, tenants and tokens, not what a request is. A tenant is whoever shares an API key.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

SHARE = 3  # a tenant may hold so many times what it leaves free


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue. `cost` is what it will take in all, in tokens, as far as known."""

    key: int
    tenant: str
    num_prompt: int
    cost: int


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Most requests that wait, and most prompt tokens of them."""

    max_requests: int
    max_tokens: int


@dataclass(slots=True)
class _Tenant:
    """`served` is the virtual token counter. It is remembered while requests wait or run."""

    served: int
    waiting: dict[int, Waiting] = field(default_factory=dict)  # in order of arrival
    num_prompt_tokens: int = 0
    cost: int = 0
    num_running: int = 0


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
        self._level = 0  # what the tenant of the latest turn had been served before it

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
        if tenant and own is not None and own.waiting:
            own_requests = len(own.waiting) + num_requests
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
        if tenant is None or not tenant.waiting:
            active = [t.served for t in self._tenants.values() if t.waiting]
            level = min(active, default=self._level)
            if tenant is None:
                self._forget_idle(level)
                tenant = self._tenants[waiting.tenant] = _Tenant(level)
            tenant.served = max(tenant.served, level)
        tenant.waiting[waiting.key] = waiting
        tenant.num_prompt_tokens += waiting.num_prompt
        tenant.cost += waiting.cost
        self._tenant_of[waiting.key] = waiting.tenant
        self._num_prompt_tokens += waiting.num_prompt

    def come_back(self, key: int) -> None:
        """A request that had its turn needs another engine."""
        self._back[key] = None

    # --- whose turn it is ----------------------------------------------------------------------

    def serve(self, place: Callable[[int], bool], may_go_on: Callable[[], bool]) -> None:
        """Offer requests in order of their turns to `place`, which says whether an engine took one.

        Everybody who waits is offered once, until `may_go_on` says that nobody can be taken any more:
        what did not fit at its turn fits no better after others were taken.
        """
        for key in list(self._back):
            if not may_go_on():
                return
            if place(key):
                self._back.pop(key, None)
        turns = [
            (tenant.served, name, iter(list(tenant.waiting)))
            for name, tenant in self._tenants.items()
            if tenant.waiting
        ]
        heapq.heapify(turns)
        while turns and may_go_on():
            served, name, keys = heapq.heappop(turns)
            for key in keys:
                if key in self._tenant_of and place(key):
                    self._level = max(self._level, served)
                    self._begin(key)
                    heapq.heappush(turns, (self._tenants[name].served, name, keys))
                    break
                if not may_go_on():
                    return

    def _begin(self, key: int) -> None:
        waiting = self._leave(key)
        tenant = self._tenants[waiting.tenant]
        tenant.served += waiting.cost
        tenant.num_running += 1
        self._running[key] = waiting

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
            if not tenant.waiting and not tenant.num_running and tenant.served <= level:
                del self._tenants[name]

    def _leave(self, key: int) -> Waiting:
        tenant = self._tenants[self._tenant_of.pop(key)]
        waiting = tenant.waiting.pop(key)
        tenant.num_prompt_tokens -= waiting.num_prompt
        tenant.cost -= waiting.cost
        self._num_prompt_tokens -= waiting.num_prompt
        return waiting

    def validate(self) -> None:
        """Assert what must hold between events."""
        waiting = [w for tenant in self._tenants.values() for w in tenant.waiting.values()]
        assert {w.key: w.tenant for w in waiting} == self._tenant_of
        assert self._num_prompt_tokens == sum(w.num_prompt for w in waiting)
        assert not self._back.keys() & self._tenant_of.keys()
        assert self._back.keys() <= self._running.keys()
        for name, tenant in self._tenants.items():
            assert tenant.cost == sum(w.cost for w in tenant.waiting.values())
            assert tenant.num_prompt_tokens == sum(w.num_prompt for w in tenant.waiting.values())
            assert tenant.num_running == sum(w.tenant == name for w in self._running.values())

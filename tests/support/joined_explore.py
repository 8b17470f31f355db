"""Every order of events of a small cluster: a search through its states, each visited once.

A step of an engine, a whole write, and a delivery with what it sets off are one event each; a search has
one fault to spend, at any moment. Time passes only when nothing else can happen.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import cache
from random import Random
from types import MethodType
from typing import Any

import msgspec

from bootstrap.errors import LocalMisuse
from bootstrap.identity import Peer
from bootstrap.messages import LegFailed, Message, TokenBatch
from decode.inspection import DecodeRooms
from kv_transfer.ledger import PageState
from prefill.inspection import PrefillRooms
from tests.support.joined import Choice, Cluster, Node
from tests.support.joined_memory import GARBAGE
from tests.support.joined_nodes import Write

MAX_WAITS = 12  # of one second each; more than any repeat needs
_SKIPPED = {
    "_story",
    "_rng",
    "_hasher",
    "hasher",
    "_limits",
    "limits",
    "info",
    "num_landed_late",
    "num_corrupted",
    "_inspection",
    "_checks",
    "_num_resent",
}
_CONSTANTS = (int, float, str, bytes, bool, type(None), Enum, msgspec.Struct, type, Random)
_VIEWS = (PrefillRooms, DecodeRooms)  # frozen, but of what changes
_CONTAINERS = (dict, list, deque, set)


class SmallCluster(Cluster):
    """A cluster whose fault is not spent yet. Faults are named by what they do and to whom.

    `corrupt-write` may be followed by the name of another fault that is possible after it.
    """

    def __init__(self, faults: tuple[str, ...], **options: Any) -> None:
        super().__init__(Random(0), max_attempts=1, **options)
        self.faults = faults
        self.num_waits = 0
        self._marks: dict[Peer, int] = {}  # fingerprints of what did not change since

    def choices(self) -> list[Choice]:
        """All that may happen, faults included."""
        found = [(kind, self._name(what)) for kind, what in super().choices()]
        if found or self.balancer.pending():
            found += [("fault", fault) for fault in self.faults if self._is_possible(fault)]
        if not [kind for kind, _ in found if kind not in ("fault", "debris")] and not self.done():
            found.append(("wait", None))
        return found

    def apply(self, choice: Choice) -> None:
        """One event and what it sets off at once."""
        kind, what = choice
        if kind == "fault":
            self._spend(str(what))
        elif kind == "wait":
            self.num_waits += 1
            assert self.num_waits <= MAX_WAITS, f"something hangs: {self.leftovers()}"
            self.pass_time(1.0)
            for node in self.nodes.values():
                node.core.tick(self.now)
                node.execute()
            self.settle()
        elif kind in ("land", "finish", "debris"):
            write = [*self.writes(), *(write for write, _ in self.debris)][what]
            while write.left and (kind == "debris" or not write.doomed):
                super().apply((kind, write))
            if kind != "debris":
                super().apply(("finish", write))
        else:
            super().apply(choice)
            node = self.nodes.get(what[1] if kind == "deliver" else what)
            if kind == "begin" and node is not None and node.plan is not None:
                node.end(self.now, self.balancer.truth)
            self.settle()

    def after(self, choice: Choice) -> "SmallCluster":
        """A copy in which `choice` happened; it shares what that cannot have changed."""
        touched = self._touched_by(choice)
        parts = {**self.nodes, self.balancer.me: self.balancer}
        new: SmallCluster = clone(
            self, {id(part): part for me, part in parts.items() if me not in touched}
        )
        new._marks = {me: mark for me, mark in self._marks.items() if me not in touched}
        new.apply(choice)
        return new

    def mark(self) -> int:
        """Equal for states that differ in nothing but how they came about."""
        parts = {**self.nodes, self.balancer.me: self.balancer}
        for me, part in parts.items():
            if me not in self._marks:
                self._marks[me] = fingerprint(part)
        links = frozenset((ends, tuple(link)) for ends, link in self.links.items() if link)
        rest = (self.news, self.orphans, self.debris, self.now, self.faults, self.num_waits)
        return hash((tuple([self._marks[me] for me in parts]), links, fingerprint(rest)))

    def _touched_by(self, choice: Choice) -> set[Peer]:
        kind, what = choice
        if kind == "deliver":
            return {what[1]}
        if kind in ("news", "begin", "tear down"):
            return {what}
        nodes = set(self.nodes)
        moves = ("land", "finish", "debris")
        return nodes if kind in moves else {*nodes, self.balancer.me}

    def done(self) -> bool:
        """Every request has its outcome and nothing is held."""
        return not self.balancer.pending() and not self.leftovers() and not self.orphans

    def _name(self, what: object) -> object:
        """Writes by their place: a copy of the cluster has copies of them."""
        if not isinstance(what, Write):
            return what
        everything = [*self.writes(), *(write for write, _ in self.debris)]
        return everything.index(what)

    def _is_possible(self, fault: str) -> bool:
        kind, *args = fault.split()
        if kind == "cancel":
            return self.balancer.requests[int(args[0])].outcome is None
        if kind == "lose-message":
            return bool(self.links.get((self._called(args[0]).me, self._called(args[1]).me)))
        return kind not in ("fail-write", "corrupt-write") or bool(self.writes())

    def _spend(self, fault: str) -> None:
        self.faults = ()
        kind, *args = fault.split()
        if kind == "cancel":
            self.balancer.cancel(self.balancer.requests[int(args[0])])
        elif kind == "corrupt-write":
            self.writes()[0].corrupt = True
            self.faults = (" ".join(args),) if args else ()
        elif kind == "fail-write":
            self.finish(self.writes()[0], "link down")
        elif kind == "lose-message":
            self.links[self._called(args[0]).me, self._called(args[1]).me].popleft()
        else:
            self._kill(self._called(args[0]), lose="lose" in args, silent="silent" in args)
        self.settle()

    def _kill(self, node: Node, *, lose: bool, silent: bool) -> None:
        for (source, _), link in self.links.items():
            if lose and source == node.me:
                link.clear()
        self.kill(node, silent_first=silent)

    def _called(self, worker_id: str) -> Node:
        return next(n for n in self.nodes.values() if n.me.ref.worker_id == worker_id)

    def _lose_tail(self, link: deque[Any]) -> None:
        """What is lost with a dead engine is the fault's to say."""

    def settle(self) -> None:
        """Leave out what makes no difference: idle rounds, messages to the dead, old free pages."""
        for node in self.nodes.values():
            while node.inbox or node.digesting:
                if node.digesting:
                    node.digest()
                node.handle(self.now)
        super().settle()
        for (_, target), link in self.links.items():
            if target not in self.nodes and target != self.balancer.me:
                link.clear()
        for node in self.nodes.values():
            ledger = node.ledger
            node.awake = node.awake and node.has_work()
            for page, content in enumerate(node.memory.pages):
                if ledger.state_of(page) is PageState.FREE:
                    content[:] = [GARBAGE] * len(content)

    def _route(self, source: Peer, posts: list[Any]) -> None:
        """Messages that the balancer would drop are dropped at once."""
        balancer = self.balancer
        posts[:] = [
            post
            for post in posts
            if post.peer != balancer.me
            or any(balancer.request_of(room) for room in _rooms(post.message))
        ]
        super()._route(source, posts)


def _rooms(message: Message) -> list[bytes]:
    """The rooms of a message whose news the balancer may use."""
    if isinstance(message, TokenBatch):
        return [tokens.room for tokens in message.rooms]
    return [message.room] if isinstance(message, LegFailed) else []


def explore(start: SmallCluster, at_end: Callable[[SmallCluster], None], max_states: int) -> int:
    """Visit every state that `start` can come to; how many there are.

    Every event checks what must hold always; `at_end` sees each state in which nothing can happen any
    more. Raises AssertionError, with the events that led there, at the first violation.
    """
    seen = {start.mark()}
    stack: list[tuple[SmallCluster, tuple[Choice, ...]]] = [(start, ())]
    while stack:
        state, path = stack.pop()
        choices = state.choices()
        if not choices:
            at_end(state)
        for choice in choices:
            try:
                after = state.after(choice)
            except (AssertionError, LocalMisuse) as error:
                story = "\n".join(f"  {kind} {what}" for kind, what in (*path, choice))
                raise AssertionError(f"{error} after\n{story}") from error
            mark = after.mark()
            if mark not in seen:
                seen.add(mark)
                assert len(seen) <= max_states, "more states than this search is meant for"
                stack.append((after, (*path, choice)))
    return len(seen)


def clone(value: Any, memo: dict[int, Any]) -> Any:
    """A copy that shares nothing that can change."""
    kind = type(value)
    if _is_constant(kind):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind is tuple:
        return tuple([clone(item, memo) for item in value])
    if kind is MethodType:
        return MethodType(value.__func__, clone(value.__self__, memo))
    new = memo[id(value)] = kind() if issubclass(kind, _CONTAINERS) else kind.__new__(kind)
    if issubclass(kind, dict):
        for key, item in value.items():
            new[key] = clone(item, memo)
    elif issubclass(kind, (list, deque)):
        new.extend([clone(item, memo) for item in value])
    elif issubclass(kind, set):
        new.update(value)
    else:
        for name in _fields(value):
            object.__setattr__(new, name, clone(getattr(value, name), memo))
    return new


def fingerprint(value: Any) -> int:
    """Equal for states that differ in nothing but how they came about (up to 64-bit collisions)."""
    kind = type(value)
    if _is_constant(kind):
        return hash(value)
    if issubclass(kind, dict):
        return hash(tuple([(key, fingerprint(item)) for key, item in value.items()]))
    if issubclass(kind, (list, deque, tuple)):
        return hash(tuple([fingerprint(item) for item in value]))
    if issubclass(kind, set):
        return hash(frozenset(value))
    fields = [name for name in _fields(value) if name not in _SKIPPED]
    return hash(tuple([fingerprint(getattr(value, name)) for name in fields]))


@cache
def _is_constant(kind: type) -> bool:
    params = getattr(kind, "__dataclass_params__", None)
    is_value = params is not None and params.frozen and kind not in _VIEWS
    return issubclass(kind, _CONSTANTS) or is_value


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))


def _fields(value: Any) -> tuple[str, ...]:
    return (*_slots(type(value)), *getattr(value, "__dict__", ()))

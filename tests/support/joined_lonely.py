"""The small cluster whose balancer may be lost, at any moment of any order of events."""

from collections import deque
from typing import Any

from engine.core import PeerLeft
from tests.support.joined_explore import SmallCluster

WORDS = ("dead", "silent", "silent-first")


class LonelyCluster(SmallCluster):
    """Its fault is `lose-balancer`, then one of WORDS, then perhaps `lose`.

    `dead` is a death that is seen, `silent` a lease that runs out and nothing more, `silent-first` both
    in that order. With `lose` nothing arrives of what the balancer had sent and no engine took yet. What
    it sent else arrives, before or after the engines hear that it is gone.
    """

    def _is_possible(self, fault: str) -> bool:
        return fault.startswith("lose-balancer") or super()._is_possible(fault)

    def _spend(self, fault: str) -> None:
        kind, *words = fault.split()
        if kind != "lose-balancer":
            super()._spend(fault)
            return
        self.faults = ()
        balancer = self.balancer
        for request in balancer.pending():
            request.attempt, request.outcome = None, "balancer lost"
        for (source, target), link in self.links.items():
            if target == balancer.me or (source == balancer.me and "lose" in words):
                link.clear()
        for who, news in self.news.items():
            if who != balancer.me:
                self._tell(news, words[0])
        self.settle()

    def _tell(self, news: deque[Any], how: str) -> None:
        ref = self.balancer.me.ref
        if how != "dead":
            news.append(PeerLeft(ref, dead=False))
        if how != "silent":
            news.append(PeerLeft(ref, dead=True))

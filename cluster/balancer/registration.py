"""What a load balancer tells the cluster of itself: a name that outlives a restart, and where it is."""

import hashlib
import os
import re
import socket
from collections.abc import Callable

from bootstrap.client import Registration
from bootstrap.identity import Peer, WorkerRef, new_incarnation
from bootstrap.membership import BalancerInfo, WorkerLoad

MAX_NAME = 64
_NUM_HASH_DIGITS = 16


def own_ref(bind_host: str, url: str) -> WorkerRef:
    """A new life of the balancer at `url`.

    Its name is made of the address that engines reach and the port that clients reach: of two processes
    only one can have both, so a restarted balancer replaces its former life, whose rooms then end at
    once, and another balancer replaces none.
    """
    port = url.rpartition(":")[2]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"balancer-{bind_host}-{port}")
    if len(name) > MAX_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_NUM_HASH_DIGITS]
        name = f"{name[: MAX_NAME - _NUM_HASH_DIGITS - 1]}-{digest}"
    return WorkerRef(name, new_incarnation())


def registration(peer: Peer, model: str, url: str, load: Callable[[], WorkerLoad]) -> Registration:
    """Of the balancer `peer`, which serves `model` to clients at `url`."""
    return Registration(BalancerInfo(peer, model, url, socket.gethostname(), os.getpid()), load)

"""`pdserve drain`, `scale` and `restart`: orders to a running `up`, and what came of them.

Owns their flags and what is printed: progress on the error stream, the account on the output.
"""

import sys
from collections.abc import Callable
from typing import Any

from bootstrap.errors import ConfigError, RemoteFault
from cluster import control, runtime
from cluster.down import chosen
from cluster.orders import (
    MAX_TIMEOUT_S,
    DrainEngine,
    Ended,
    Order,
    Progress,
    Refused,
    RestartEngines,
    ScaleEngines,
)
from cluster.settings import MAX_WORKERS_PER_ROLE

EXIT_FAILED = 1

_EXIT_CODES = "exit code: 0 when done, 1 when it failed, 2 when it cannot be done"


def add_commands(add: Callable[..., Any], number: Callable[..., Any]) -> None:
    """The three commands; `add(name, run, text)` makes a parser, `number(name, kind)` a type."""
    parser = add("drain", _drain, "take one engine out once it has finished its requests")
    parser.add_argument("worker", metavar="WORKER", help="which, as `pdserve status` names it")
    parser.add_argument("--restart", action="store_true", help="start it again after that")
    _add_rest(parser, number)
    parser = add("scale", _scale, "change how many engines there are")
    for role in ("prefill", "decode"):
        kind = number(role, int)
        parser.add_argument(f"--{role}", type=kind, metavar="N", help=f"number of {role} engines")
    _add_rest(parser, number)
    parser = add("restart", _restart, "replace the engines one after the other, losing no request")
    parser.add_argument(
        "--role", default="all", metavar="ROLE", help="one of prefill, decode, all (default: all)"
    )
    _add_rest(parser, number)


def _add_rest(parser: Any, number: Callable[..., Any]) -> None:
    parser.epilog = _EXIT_CODES
    parser.add_argument(
        "--timeout",
        type=number("timeout", float),
        metavar="SECONDS",
        help="what an engine that leaves has for its requests; the rest go on elsewhere"
        " (default: `up`'s drain_s)",
    )
    parser.add_argument(
        "--port", type=number("port", int), metavar="N", help="which `up`, when several are running"
    )


def _drain(arguments: dict[str, Any]) -> int:
    timeout_s = _checked("timeout", arguments["timeout"], 0, MAX_TIMEOUT_S)
    order = DrainEngine(arguments["worker"], arguments["restart"], timeout_s)
    return operate(order, arguments["port"])


def _scale(arguments: dict[str, Any]) -> int:
    counts = {
        role: _checked(role, arguments[role], 1, MAX_WORKERS_PER_ROLE)
        for role in ("prefill", "decode")
    }
    if not any(counts.values()):
        raise ConfigError("prefill=None decode=None: at least one of them is needed")
    timeout_s = _checked("timeout", arguments["timeout"], 0, MAX_TIMEOUT_S)
    return operate(ScaleEngines(**counts, timeout_s=timeout_s), arguments["port"])


def _restart(arguments: dict[str, Any]) -> int:
    role = arguments["role"]
    if role not in ("prefill", "decode", "all"):
        raise ConfigError(f"role={role!r}: allowed are prefill, decode, all")
    timeout_s = _checked("timeout", arguments["timeout"], 0, MAX_TIMEOUT_S)
    return operate(RestartEngines(role, timeout_s), arguments["port"])


def _checked(key: str, value: Any, low: float, high: float) -> Any:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{key}={value}: allowed are {low} to {high}")
    return value


def operate(order: Order, port: int | None) -> int:
    """Give an order to the `up` (that serves `port`) and wait until it is carried out; the exit code.

    Raises ConfigError for an order that cannot be carried out.
    """
    record = chosen(runtime.running(), port)
    if record is None:
        where = "" if port is None else f" on port {port}"
        raise RemoteFault(f"no `up` of this user is running{where}")
    said = ""
    for answer in control.send(runtime.folder_of(record), order):
        if isinstance(answer, Refused):
            raise ConfigError(answer.why)
        if isinstance(answer, Ended):
            print(answer.words)
            return 0 if answer.done else EXIT_FAILED
        if isinstance(answer, Progress) and answer.words not in ("", said):
            said = answer.words
            print(f"pdserve: {said}", file=sys.stderr)
    raise RemoteFault("`up` did not say what came of the order")

"""Processes of this machine as the kernel sees them: who is alive, whose child, tied to whose life.

Owns the Linux calls (`prctl`, `/proc`) in one place. Knows nothing of what the processes do.
"""

import ctypes
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

from kv_transfer.backends.process import start_time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the parent's thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of whatever its descendants leave behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, children before their own children; zombies included."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(int(entry.name))
            if parent is not None:
                children[parent].append(int(entry.name))
    found = list(children[pid])
    for child in found:  # grows while it is walked
        found.extend(children[child])
    return found


def end_descendants(timeout_s: float) -> list[int]:
    """Kill whatever still lives below this process; what is left after `timeout_s`, mostly nothing.

    Needs `adopt_orphans` to have been called before any of them started.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        _reap()
        left = descendants(os.getpid())
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            _kill(pid)
        time.sleep(_POLL_S)


def kill(pid: int, started: int) -> None:
    """Kill the process that started then; none that got its pid later, and none is no error."""
    if start_time(pid) == started:
        _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _parent(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[1])  # field 4 of proc(5); the name may hold spaces

"""What Ray's launcher and autoscaler write while they set hosts up: the steps, and what failed where. Pure.

Their lines, as Ray 2.60 writes them:

    ... -- [6/7] Running setup commands
    ... -- Running `test -x ~/pdserve/bin/ray`
    ... -- Full command is `ssh -tt ... user@10.0.0.12 bash --login -c -i '...'`
    bash: whatever the command itself writes
    ... -- NodeUpdater: 10.0.0.12: Setup commands failed [LogTimer=126ms]
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\d .*? -- (.*)$")
_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.+)$")
_RUNNING = re.compile(r"^Running `(.*)`$")
_FULL = re.compile(r"^Full command is `ssh .*?@(\S+) ")
_DONE = re.compile(r"^NodeUpdater: (\S+): (.*?)\s+\[LogTimer=")
_VARIABLES = re.compile(r"^(?:export [A-Za-z_]+=(?:'[^']*'|[^;']*);\s*)*")
_NOISE = ("Shared connection to ", "Warning: Permanently added ")
_MAX_OUTPUT_LINES = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong on a host: the step, the command, and the last that was written meanwhile."""

    host: str
    what: str
    command: str
    output: tuple[str, ...]

    def __str__(self) -> str:
        output = "".join(f"\n    {line}" for line in self.output)
        return f"host {self.host}: {self.what}: {self.command}{output}"


@dataclass(frozen=True, slots=True)
class LaunchLog:
    """The hosts that were reached, and those of them that are not set up because something failed."""

    reached: frozenset[str]
    failures: tuple[Failure, ...]


def plain(line: str) -> str:
    """Without colours and what stands before the message of a logged line."""
    text = _COLOUR.sub("", line).rstrip("\r\n")
    logged = _LOGGED.match(text)
    return text if logged is None else logged.group(1)


def step(line: str) -> str | None:
    """The launcher's step that a line announces."""
    found = _STEP.match(plain(line))
    return None if found is None else f"{found.group(3)} ({found.group(1)}/{found.group(2)})"


def read(lines: Iterable[str]) -> LaunchLog:
    """The last word on each host; one that was set up in the end has no failure."""
    running, commands = "", {}
    output: list[str] = []
    reached: set[str] = set()
    failures: dict[str, Failure] = {}
    for line in lines:
        text = plain(line)
        if found := _RUNNING.match(text):
            running, output = _VARIABLES.sub("", found.group(1)), []
        elif found := _FULL.match(text):
            commands[found.group(1)] = running
        elif found := _DONE.match(text):
            host, what = found.groups()
            if what == "Got remote shell":
                reached.add(host)
            elif what.endswith(" succeeded"):
                failures.pop(host, None)
            elif what.endswith(" failed"):
                last = tuple(output[-_MAX_OUTPUT_LINES:])
                failures[host] = Failure(host, what, commands.get(host, running), last)
        elif _is_output(line):
            output.append(text.strip())
    return LaunchLog(frozenset(reached), tuple(failures.values()))


def _is_output(line: str) -> bool:
    """Whether a command on the host wrote it, not the launcher or ssh."""
    text = _COLOUR.sub("", line).strip()
    return bool(text) and _LOGGED.match(text) is None and not text.startswith(_NOISE)

"""Ray's launcher and ssh as programs of this machine: lines as they come, a deadline, the end of it all.

Owns the processes. What is run and what lines mean is others' business.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from types import MappingProxyType

from bootstrap.errors import ConfigError
from cluster.ray import notes
from cluster.ray.cluster_file import ClusterFile, SshLogin

_SSH_CONNECT_S = 10
_GRACE_S = 5.0
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ended:
    """A program's end: its exit code, None when its time was over, and all of its lines."""

    code: int | None
    lines: tuple[str, ...]


def run(
    command: Sequence[str],
    timeout_s: float,
    on_line: Callable[[str], None] = lambda line: None,
    folder: Path | None = None,
    variables: Mapping[str, str] = _NO_VARIABLES,
) -> Ended:
    """Run a program to its end or kill it with all that it started; raises ConfigError if there is none."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env={**os.environ, **variables},
            start_new_session=True,  # a group of its own, with its ssh
        )
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]!r} is not installed on this machine") from error
    lines: list[str] = []
    queue: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_read, args=(process, queue), daemon=True).start()
    deadline = time.monotonic() + timeout_s
    try:
        while (line := queue.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            lines.append(line)
            on_line(line)
        return Ended(process.wait(_GRACE_S), tuple(lines))
    except (Empty, subprocess.TimeoutExpired):
        return Ended(None, tuple(lines))
    finally:
        _end(process)


def _read(process: "subprocess.Popen[str]", queue: "SimpleQueue[str | None]") -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for text in output:
            queue.put(text.rstrip("\r\n"))
    queue.put(None)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class RayCli:
    """Ray's own commands on one cluster file, run in the file's folder, which relative paths are of."""

    def __init__(self, file: ClusterFile) -> None:
        self._file = file
        self._variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(file.ray_token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_UP_enable_autoscaler_v2": "1",  # as by default, without a line that says so
            "RAY_TMPDIR": notes.folder(),
            "PYTHONUNBUFFERED": "1",
        }

    def up(self, restart: bool, timeout_s: float, on_line: Callable[[str], None]) -> Ended:
        """Start the head and, from there, the others; without `restart` a Ray that runs stays."""
        flags = [] if restart else ["--no-restart"]
        arguments = ["up", "--yes", "--no-config-cache", *flags]
        return self._run(arguments, [], timeout_s, on_line)

    def execute(
        self, command: str, timeout_s: float, on_line: Callable[[str], None] = lambda line: None
    ) -> Ended:
        """Run a shell command on the head, as Ray's user there."""
        return self._run(["exec", "--no-config-cache"], [command], timeout_s, on_line)

    def down(self, timeout_s: float, on_line: Callable[[str], None]) -> Ended:
        """End what `up` started."""
        with TemporaryDirectory() as folder:  # for a cache that Ray would leave in /tmp
            return self._run(["down", "--yes"], [], timeout_s, on_line, {"TMPDIR": folder})

    def _run(
        self,
        before: list[str],
        after: list[str],
        timeout_s: float,
        on_line: Callable[[str], None],
        variables: Mapping[str, str] = _NO_VARIABLES,
    ) -> Ended:
        ray = [sys.executable, "-m", "ray.scripts.scripts", before[0], "--log-style", "record"]
        command = [*ray, "--log-color", "false", *before[1:], str(self._file.path), *after]
        return run(
            command, timeout_s, on_line, self._file.path.parent, {**self._variables, **variables}
        )


def ssh(login: SshLogin, host: str, command: str, timeout_s: float) -> Ended:
    """Run a shell command on a host, by the options that Ray's launcher uses."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(_SSH_CONNECT_S),
        "IdentitiesOnly": "yes",
        "LogLevel": "ERROR",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": os.devnull,
    }
    if login.proxy_command:
        options["ProxyCommand"] = login.proxy_command
    arguments = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if login.key:
        arguments += ["-i", os.path.expanduser(login.key)]
    return run(["ssh", *arguments, f"{login.user}@{host}", command], timeout_s)

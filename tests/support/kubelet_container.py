"""One container for real: a command as PID 1 over a read-only root, with its mounts, user and variables.

Owns the process. What to run and to mount comes resolved; when to start and stop it is others' to say.
"""

import contextlib
import http.client
import signal
import socket
import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.sandbox import (
    Sandbox,
    environment,
    in_network_of,
    marked,
    only_child,
    signal_quietly,
)
from tests.support.waiting import wait_for

Manifest = dict[str, Any]

_MOMENT_S = 60.0  # of what takes a moment, on a machine that does much else
# The sandbox's image, a folder to mount on, the user; triples (ro|rw, source, target), `--`, the command.
_BOOT = """
set -e
image=$1; root=$2; user=$3; shift 3
mount --bind "$image" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for tree in venv project; do mount --bind "$image/opt/pdserve/$tree" "$root/opt/pdserve/$tree"; done
while [ "$1" != -- ]; do
  mount --bind "$2" "$root$3"
  if [ "$1" = ro ]; then mount -o remount,bind,ro "$root$3"; fi
  shift 3
done
shift
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \\
  --bounding-set -all --inh-caps -all -- "$@"
"""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the sandbox at a place in the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """The process that holds a pod's network and host name, and perhaps its containers' processes."""

    pid: int
    address: str
    shares_processes: bool


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container's manifest with everything in it that needs the cluster resolved."""

    manifest: Manifest
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    user: int

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    def port(self, wanted: int | str) -> int:
        """The number of a port that probes give by name or number."""
        if isinstance(wanted, int):
            return wanted
        return next(p["containerPort"] for p in self.manifest["ports"] if p["name"] == wanted)


@dataclass
class Container:
    """One life after another of one container; at most one process at a time."""

    spec: ContainerSpec
    sandbox: Sandbox
    pause: Pause
    folder: Path
    num_starts: int = 0
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    _pid: int = 0

    @property
    def pid(self) -> int:
        """Of PID 1 as this machine counts; valid while it runs."""
        return self._pid

    @property
    def log(self) -> str:
        """All output of all lives."""
        path = self.folder / f"{self.spec.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """Of the present life; None while it runs and before the first."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start a life and run its postStart hook."""
        self.num_starts += 1
        root = self.folder / f"{self.spec.name}.root"
        triples = [
            word
            for mount in self.spec.mounts
            for word in ("ro" if mount.read_only else "rw", mount.source, mount.target)
        ]
        boot = ["sh", "-c", _BOOT, "boot", str(self.sandbox.image), str(root), str(self.spec.user)]
        own = [] if self.pause.shares_processes else ["-p", "-f", "--kill-child"]
        inner = ["nsenter", "-t", str(self.pause.pid), "-n", "-u", "-i"]
        inner += ["-p", "--"] if self.pause.shares_processes else ["--"]
        inner += ["unshare", "-m", *own, "--propagation", "private", "--"]
        self.sandbox.run("mkdir", "-p", str(root))
        with (self.folder / f"{self.spec.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.sandbox.inside(*inner, *boot, *triples, "--", *self.spec.command),
                env=environment((*self.spec.variables, self._mark)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process = self._process
        self._pid = wait_for(
            lambda: only_child(process.pid) or (process.poll() is not None and -1),
            _MOMENT_S,
            "a process",
        )
        assert self._pid > 0, f"{self.spec.name} did not start:\n{self.log}"
        wait_for(lambda: self._is_inside() or process.poll() is not None, _MOMENT_S, "its own root")
        hook = self.spec.manifest.get("lifecycle", {}).get("postStart")
        if hook is not None:
            wait_for(
                lambda: self.execute(hook["exec"]["command"], _MOMENT_S),
                _MOMENT_S,
                "the postStart hook",
            )

    def stop(self, grace_s: float) -> None:
        """As the kubelet does: SIGTERM, and after the grace SIGKILL."""
        if self.exit_code is None and self._process is not None:
            signal_quietly(self._pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all of its processes. Idempotent."""
        if self._process is not None:
            if self._process.poll() is None:
                signal_quietly(self._pid, signal.SIGKILL)
            self._process.wait(_MOMENT_S)
        if self.pause.shares_processes:  # no PID 1 of its own took them along
            for pid in marked("=".join(self._mark)):
                signal_quietly(pid, signal.SIGKILL)

    def execute(self, command: Sequence[str], timeout_s: float) -> bool:
        """Run a command in it as its own user; whether it exited with 0 in time."""
        user = str(self.spec.user)
        enter = ["nsenter", "-t", str(self._pid), "-m", "-n", "-u", "-i", "-p", "-r", "-w", "--"]
        drop = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--"]
        try:
            done = subprocess.run(
                [*enter, *drop, *command],
                env=environment(self.spec.variables),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def probe(self, probe: Manifest) -> bool:
        """Whether a probe succeeds now."""
        timeout_s = float(probe.get("timeoutSeconds", 1))
        if "exec" in probe:
            return self.execute(probe["exec"]["command"], timeout_s)
        kind = "httpGet" if "httpGet" in probe else "tcpSocket"
        port = self.spec.port(probe[kind]["port"])
        try:
            if kind == "tcpSocket":
                return in_network_of(self.pause.pid, lambda: self._connects(port, timeout_s))
            return in_network_of(self.pause.pid, lambda: self._gets(probe[kind], port, timeout_s))
        except (OSError, http.client.HTTPException):
            return False

    @property
    def _mark(self) -> tuple[str, str]:
        """A variable by which its processes are found."""
        return "MINI_KUBELET_CONTAINER", f"{self.folder}/{self.spec.name}"

    def _is_inside(self) -> bool:
        """Whether PID 1 is its own user, and so behind its root, by now."""
        try:
            status = Path(f"/proc/{self._pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return f"\nUid:\t{self.spec.user}\t" in status

    def _connects(self, port: int, timeout_s: float) -> bool:
        socket.create_connection((self.pause.address, port), timeout_s).close()
        return True

    def _gets(self, get: Manifest, port: int, timeout_s: float) -> bool:
        connection: http.client.HTTPConnection
        if get.get("scheme", "HTTP") == "HTTPS":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection = http.client.HTTPSConnection(
                self.pause.address, port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(self.pause.address, port, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request("GET", get["path"])
            return 200 <= connection.getresponse().status < 400

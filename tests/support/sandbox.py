"""A private piece of this machine: own mounts, own network, one bridge; nothing leaks out of it.

Owns the process that holds the namespaces, a copy-on-write view of the root for containers (`image`), and
the bridge. Needs root. Knows no Kubernetes.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.conftest import ROOT

T = TypeVar("T")

SUBNET = "198.18.0"  # of the range that RFC 2544 keeps for tests
IMAGE = "/opt/pdserve"  # where containers find Python and the project
PATH = f"{IMAGE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEEDED = ("unshare", "nsenter", "ip", "setpriv", "mount", "chroot", "find")
_CLONE_NEWNET = 0x40000000
_SIZE = "6g"

# By the last part of the IP address. Left alone a bridge takes the lowest address of its ports, another one
# when a pod goes: then what is sent to the old one is lost until others notice, close to a minute later.
_LINK_ADDRESS = "02:00:00:00:00:%02x"
# /root may be closed to other users, and the interpreter may lie there.
_BEGIN = f"""
set -e
ip link set lo up
ip link add br0 address {_LINK_ADDRESS % 1} type bridge
ip addr add {SUBNET}.1/24 dev br0
ip link set br0 up
mount -t tmpfs -o size={_SIZE},mode=755 sandbox "$1"
mkdir "$1/upper" "$1/work" "$1/image"
mount -t overlay image -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/image"
chmod 755 "$1/image/root"
: > "$1/image/etc/resolv.conf"
mkdir -p "$1/image{IMAGE}/bin" "$1/image{IMAGE}/venv" "$1/image{IMAGE}/project"
mkdir -p "$1/image/models" "$1/image/etc/pdserve"
mount --bind "$2" "$1/image{IMAGE}/venv"
mount --bind "$3" "$1/image{IMAGE}/project"
shim() {{ printf '#!/bin/sh\\nexec {IMAGE}/venv/bin/python %s "$@"\\n' "$2" > "$1"; }}
shim "$1/image{IMAGE}/bin/python" ""
shim "$1/image{IMAGE}/bin/ray" "-m ray.scripts.scripts"
shim "$1/image{IMAGE}/bin/pdserve" "-m cluster"
chmod 755 "$1/image{IMAGE}/bin/"*
echo ready
exec sleep infinity
"""


def why_not() -> str | None:
    """Why no sandbox can be had here, or None when one can."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "namespaces with mounts need root"
    tried = subprocess.run(["unshare", "-m", "-n", "-p", "-f", "true"], check=False)
    return None if tried.returncode == 0 else "this kernel or container allows no namespaces"


class Sandbox:
    """From entry to exit; everything that was started in it must be gone before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sandbox"
        self.folder.mkdir()
        self._num_links = 0

    @property
    def image(self) -> Path:
        """The root of containers, inside the sandbox's mounts."""
        return self.folder / "image"

    def __enter__(self) -> "Sandbox":
        command = ["unshare", "-m", "-n", "--propagation", "private"]
        # Killed when this process goes, however it goes; the namespaces go with it.
        command += ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _BEGIN, "sandbox"]
        command += [str(self.folder), sys.prefix, ROOT]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", "no sandbox: see the messages above"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()

    def inside(self, *command: str) -> list[str]:
        """`command` as it runs in the sandbox's mounts and network."""
        return ["nsenter", "-t", str(self._holder.pid), "-m", "-n", "--", *command]

    def run(self, *command: str) -> str:
        """Run it inside; its output. Raises CalledProcessError."""
        return subprocess.run(
            self.inside(*command), check=True, stdout=subprocess.PIPE, text=True, timeout=60
        ).stdout

    def connect(self, pid: int, address: str) -> None:
        """Give the network of process `pid` an interface with `address` on the bridge."""
        self._num_links += 1
        link = f"pod{self._num_links}"
        inside = ("name", "eth0", "address", _LINK_ADDRESS % int(address.rpartition(".")[2]))
        self.run(*("ip", "link", "add", link, "type", "veth", "peer", *inside, "netns", str(pid)))
        self.run("ip", "link", "set", link, "master", "br0", "up")
        inner = (
            f"ip link set lo up && ip addr add {address}/24 dev eth0 && ip link set eth0 up"
            f" && ip route add default via {SUBNET}.1"
        )
        subprocess.run(["nsenter", "-t", str(pid), "-n", "sh", "-c", inner], check=True, timeout=60)

    def in_network(self, call: Callable[[], T]) -> T:
        """Call it on a thread whose sockets are the sandbox's."""
        return in_network_of(self._holder.pid, call)


def in_network_of(pid: int, call: Callable[[], T]) -> T:
    """Call it on a thread that is in the network of process `pid`; raises what it raises."""

    def enter_and_call() -> T:
        with open(f"/proc/{pid}/ns/net") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        return call()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_call).result()


def signal_quietly(pid: int, number: signal.Signals) -> None:
    """Send it to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def only_child(pid: int) -> int | None:
    """The child of a process that has at most one."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return None
    return int(children[0]) if children else None


def marked(variable: str) -> list[int]:
    """Processes that have this `NAME=value` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and variable.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):  # it is gone
            continue
    return found


def environment(extra: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The image's own variables, and those of a container."""
    return {"PATH": PATH, "PYTHONPATH": f"{IMAGE}/project", "TERM": "dumb", **dict(extra)}

"""Hosts for real, as far as one kernel goes: own processes, network, mounts and name, an sshd in each.

Owns their life over the sandbox's image and bridge. Needs root and Debian's openssh-server. What runs on
them is others' business.
"""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.support import sandbox
from tests.support.sandbox import IMAGE, PATH, SUBNET, Sandbox, only_child
from tests.support.waiting import wait_for

T = TypeVar("T")

HOME = "/home/operator"  # of root, with nothing of this machine's in it
MODEL = "/models/tiny"
_START_S = 30.0

# The sandbox's folder; the host's own folder in it, its name and address. The upper layer is a tmpfs, and
# so are /tmp and the home: what the host leaves behind is seen there.
_BOOT = f"""
set -e
sandbox=$1; own=$2; name=$3; address=$4
mkdir -p "$own/upper" "$own/work" "$own/root"
mount -t overlay host -o "lowerdir=$sandbox/upper:/,upperdir=$own/upper,workdir=$own/work" "$own/root"
for tree in venv project; do
  mount --bind "$sandbox/image{IMAGE}/$tree" "$own/root{IMAGE}/$tree"
done
hostname "$name"
mount -t proc proc "$own/root/proc"
mount --rbind /sys "$own/root/sys"
mount --rbind /dev "$own/root/dev"
mount -t tmpfs -o size=1g shm "$own/root/dev/shm"
mount -t tmpfs -o size=1g,mode=1777 tmp "$own/root/tmp"
mkdir -p "$own/root/run/sshd"
printf '127.0.0.1 localhost\\n%s %s\\n' "$address" "$name" > "$own/root/etc/hosts"
exec chroot "$own/root" /usr/sbin/sshd -D -e -f /etc/ssh/simulated.conf
"""

# Into the image: one key for all, a home that knows nothing of this machine's, where programs are.
_PREPARE = f"""
set -e
image=$1; keys=$2; model=$3
rm -rf "$image{HOME}"
mkdir -p -m 700 "$image{HOME}" "$image{HOME}/.ssh"
sed -i 's|^root:\\(.*\\):[^:]*:\\([^:]*\\)$|root:\\1:{HOME}:\\2|' "$image/etc/passwd"
: > "$image{HOME}/.bashrc"
cp "$keys/id" "$image{HOME}/.ssh/id"
cp "$keys/id.pub" "$image{HOME}/.ssh/authorized_keys"
chown -R 0:0 "$image{HOME}/.ssh"
chmod 600 "$image{HOME}/.ssh/id"
ln -sfn {IMAGE} "$image{HOME}/pdserve"
cp -r "$model" "$image{MODEL}"
ssh-keygen -q -t ed25519 -N '' -f "$image/etc/ssh/simulated_key"
cat > "$image/etc/ssh/simulated.conf" <<'END'
HostKey /etc/ssh/simulated_key
PasswordAuthentication no
PermitRootLogin prohibit-password
UseDNS no
UsePAM no
MaxStartups 50
SetEnv PYTHONPATH={IMAGE}/project PYTHONDONTWRITEBYTECODE=1
END
"""


@dataclass
class SimulatedHost:
    """One host, on or off."""

    name: str
    address: str
    hosts: "SimulatedHosts" = field(repr=False)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    _pid: int = 0

    @property
    def root(self) -> Path:
        """Its file system as this machine sees it; valid while it is on."""
        return Path(f"/proc/{self._pid}/root")

    @property
    def log(self) -> str:
        """What its sshd said."""
        return (self.hosts.folder / f"{self.name}.log").read_text(errors="replace")

    def turn_on(self) -> None:
        """Boot; its files of an earlier life are there, but for /tmp. Takes connections on return."""
        box = self.hosts.sandbox
        enter = ["setpriv", "--pdeathsig", "KILL", "unshare", "-m", "-n", "-p", "-u", "-i", "-f"]
        enter += ["--kill-child", "--propagation", "private", "--"]
        own = str(box.folder / self.name)
        boot = ["sh", "-c", _BOOT, "boot", str(box.folder), own, self.name, self.address]
        with (self.hosts.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                box.inside(*enter, *boot),
                env={"PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process = self._process
        self._pid = wait_for(lambda: only_child(process.pid) or 0, _START_S, "a process")
        box.connect(self._pid, self.address)
        wait_for(lambda: process.poll() is not None or self._takes_connections(), _START_S, "sshd")
        assert process.poll() is None, f"{self.name} did not boot:\n{self.log}"

    def turn_off(self) -> None:
        """As if its power was cut. Idempotent."""
        if self._process is not None and self._process.poll() is None:
            sandbox.signal_quietly(self._pid, sandbox.signal.SIGKILL)
            self._process.wait(_START_S)

    def inside(self, *command: str) -> list[str]:
        """`command` as it runs on the host, as from its console."""
        enter = ["nsenter", "-t", str(self._pid), "-m", "-n", "-p", "-u", "-i", "-r", "-w", "--"]
        variables = [f"PATH={PATH}", f"PYTHONPATH={IMAGE}/project", f"HOME={HOME}"]
        return [*enter, "env", "-i", *variables, "PYTHONDONTWRITEBYTECODE=1", *command]

    def run(self, *command: str, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
        """Run it on the host to its end; its output and exit code."""
        return subprocess.run(
            self.inside(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def in_network(self, call: Callable[[], T]) -> T:
        """Call it on a thread whose sockets are the host's."""
        return sandbox.in_network_of(self._pid, call)

    def commands(self) -> list[str]:
        """Command lines of all its processes but sshd's own and this question's."""
        lines = self.run("sh", "-c", "ps -eo args=").stdout.splitlines()
        own = ("sshd", "/usr/sbin/sshd", "sh -c ps", "ps -eo", "env ")
        return [line for line in lines if not line.startswith(own)]

    def _takes_connections(self) -> bool:
        done = self.run("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/22")
        return done.returncode == 0


class SimulatedHosts:
    """From entry to exit; on exit every host is off, and all that they held is gone."""

    def __init__(self, folder: Path, model: Path, names: Sequence[str]) -> None:
        """`model` is a folder that every host has at MODEL."""
        self.folder = folder
        self._model = model
        self.sandbox = Sandbox(folder)
        self.hosts = {
            name: SimulatedHost(name, f"{SUBNET}.{number}", self)
            for number, name in enumerate(names, start=10)
        }

    def __getitem__(self, name: str) -> SimulatedHost:
        return self.hosts[name]

    def __enter__(self) -> "SimulatedHosts":
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "id")],
            check=True,
        )
        self.sandbox.__enter__()
        try:
            image, keys, model = str(self.sandbox.image), str(self.folder), str(self._model)
            self.sandbox.run("sh", "-c", _PREPARE, "prepare", image, keys, model)
            for host in self.hosts.values():
                host.turn_on()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.hosts.values():
            host.turn_off()
        self.sandbox.__exit__(kind, error, trace)

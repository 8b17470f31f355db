"""`pdserve ray-up` and `pdserve ray-down`: a cluster file's hosts, from nothing to serving and back.

Owns the order of steps and what is said about each. Ray's launcher does the work on hosts; what runs on the
head is `cluster.ray.head`'s.
"""

import os
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bootstrap.errors import ConfigError, RemoteFault
from bootstrap.identity import Role
from cluster.placement import SLOTS
from cluster.progress import Progress
from cluster.ray import launch_log, notes
from cluster.ray.cluster_file import FIXED_HOSTS, RAY_TOKEN, ClusterFile
from cluster.ray.remote import Ended, RayCli, run, ssh
from cluster.ray.telling import failure, said, told

EXIT_FAILED = 1
ASK_TIMEOUT_S = 90.0
DOWN_TIMEOUT_S = 180.0
HOST_TIMEOUT_S = 60.0
_MARGIN_S = 30.0  # for a login and Ray's imports on the head
_TAIL_LINES = 30

# Where the cluster files install it, or wherever an image has it.
_PDSERVE = 'RAY_AUTH_MODE=token PATH="$HOME/pdserve/bin:$PATH" pdserve'
_CLEAR = (
    'PATH="$HOME/pdserve/bin:$PATH" ray stop --force >/dev/null 2>&1;'
    f" rm -rf ~/.pdserve {RAY_TOKEN} ~/ray_bootstrap_config.yaml ~/ray_bootstrap_key.pem"
    " /tmp/ray /tmp/ray_ssh_*; rmdir ~/.ray /tmp/pdserve-$(id -u) 2>/dev/null; true"
)


def ray_up(file: ClusterFile, flags: Sequence[str], num_engines: int, timeout_s: float) -> int:
    """Bring hosts, Ray and `pdserve up` with `flags` up and wait for the engines; the exit code."""
    deadline = time.monotonic() + timeout_s
    _check_installed(file)
    make_secrets(file)
    cli, progress = RayCli(file), Progress()
    with progress.shown():
        progress.say("head", "asking what runs")
        looked = told(cli.execute(f"{_PDSERVE} ray-head look", ASK_TIMEOUT_S).lines)
        if looked is not None and looked.flags is not None:
            _check_same(looked.flags, flags)
            if 0 < looked.num_workers == looked.num_serving:
                progress.say(
                    "head", f"{num_engines} engines serve already: nothing to do", done=True
                )
                return 0
        else:
            running = looked is not None and looked.ray
            _launch(cli, progress, not running, deadline)
        return _serve(cli, progress, flags, num_engines, deadline)


def ray_down(file: ClusterFile) -> int:
    """End everything, the workers first, and leave nothing on hosts that stay; the exit code."""
    cli, progress = RayCli(file), Progress()
    with progress.shown():
        progress.say("pdserve", "ending")
        heard = _Heard("pdserve", progress)
        ended = cli.execute(f"{_PDSERVE} ray-head stop", DOWN_TIMEOUT_S, heard)
        if ended.code != 0 and not heard.words:
            progress.say("pdserve", "the head does not answer", done=True)
        left = _clear(file, file.workers, progress)
        progress.say("ray", "ray down")
        down = cli.down(DOWN_TIMEOUT_S, lambda line: None)
        if down.code != 0:
            raise RemoteFault(_told_by("ray down", down))
        progress.say("ray", "down", done=True)
        left += _clear(file, () if file.head is None else (file.head,), progress)
    notes.forget(file.name)
    for host in left:
        progress.say(host, "not reached: what runs there goes on until it is turned off")
    return EXIT_FAILED if left else 0


def _check_installed(file: ClusterFile) -> None:
    """Ray's own program must find the provider from where it runs: a mere checkout does not do."""
    if not file.has_own_provider:
        return
    look = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({__package__!r}))"
    if run([sys.executable, "-c", look], ASK_TIMEOUT_S, folder=file.path.parent).code != 0:
        raise ConfigError(
            f"provider.module={FIXED_HOSTS!r}: Ray cannot import it, as pdserve is not installed in"
            f" {sys.executable}: pip install it there"
        )


def make_secrets(file: ClusterFile) -> None:
    """The cluster's secret and Ray's token, beside the cluster file: made once, for its owner alone."""
    for path in (file.secret, file.ray_token):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"file_mounts: {str(path)!r}: {error.strerror}") from error
        with open(fd, "w", encoding="ascii") as secret:
            secret.write(secrets.token_hex(32))


def expected(file: ClusterFile, prefill: int | None, decode: int | None) -> dict[Role, int]:
    """How many engines of each role: what is asked for, else one for every slot of the file."""
    slots = file.slots
    if slots is None and (prefill is None or decode is None):
        raise ConfigError(
            "prefill=None decode=None: both are needed, as the cluster file does not say how many slots"
            " its hosts offer"
        )
    found = {}
    for role, asked in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        offered = 0 if slots is None else slots[role]
        found[role] = offered if asked is None else asked
        if found[role] < 1:
            raise ConfigError(
                f"{role.value}={found[role]}: at least 1 is needed; slots are resources"
                f" {SLOTS[role]} of node types with min_workers"
            )
        if file.most_slots is not None and found[role] > file.most_slots[role]:
            raise ConfigError(
                f"{role.value}={found[role]}: at most {file.most_slots[role]} are allowed; slots are"
                f" resources {SLOTS[role]} of node types, up to their max_workers"
            )
    return found


class _Heard:
    """Shows what the head says, and keeps it."""

    def __init__(self, part: str, progress: Progress) -> None:
        self._part, self._progress = part, progress
        self.words: list[str] = []

    def __call__(self, line: str) -> None:
        words = said(line)
        if words is None:
            return
        self.words.append(words)
        part, separator, stage = words.partition(": ")
        if separator and " " not in part:
            self._progress.say(part, stage)
        else:
            self._progress.say(self._part, words)


def _check_same(running: Sequence[str], wanted: Sequence[str]) -> None:
    """How long to wait is no difference."""
    kept = [{f for f in flags if "start-timeout" not in f} for flags in (running, wanted)]
    if kept[0] != kept[1]:
        raise ConfigError(
            f"`pdserve up {shlex.join(running)}` runs there already, not"
            f" `pdserve up {shlex.join(wanted)}`: scale it with `pdserve scale` on the head, or end it"
            " with `pdserve ray-down` first"
        )


def _launch(cli: RayCli, progress: Progress, restart: bool, deadline: float) -> None:
    def show(line: str) -> None:
        step = launch_log.step(line)
        if step is not None:
            progress.say("head", step)

    progress.say("head", "ray up")
    ended = cli.up(restart, _left(deadline), show)
    if ended.code != 0:
        failures = launch_log.read(ended.lines).failures
        raise RemoteFault("\n".join(map(str, failures)) or _told_by("ray up", ended))
    progress.say("head", "Ray runs", done=True)


def _serve(
    cli: RayCli, progress: Progress, flags: Sequence[str], num_engines: int, deadline: float
) -> int:
    timeout_s = max(1.0, _left(deadline) - _MARGIN_S)
    command = f"{_PDSERVE} ray-head start {num_engines} {timeout_s:.0f}"
    heard = _Heard("pdserve", progress)
    ended = cli.execute(f"{command} -- {shlex.join(flags)}", _left(deadline) + _MARGIN_S, heard)
    if ended.code != 0:
        raise RemoteFault(failure(ended.lines) or _told_by("pdserve up", ended))
    progress.say("pdserve", f"{num_engines} engines serve", done=True)
    return 0


def _clear(file: ClusterFile, hosts: Sequence[str], progress: Progress) -> list[str]:
    """Stop Ray on hosts and remove what was put there; those that were not reached."""
    if not hosts:
        return []

    def clear(host: str) -> Ended:
        progress.say(host, "stopping Ray")
        return ssh(file.ssh, host, _CLEAR, HOST_TIMEOUT_S)

    with ThreadPoolExecutor(max_workers=len(hosts)) as threads:
        ended = list(threads.map(clear, hosts))
    for host, end in zip(hosts, ended, strict=True):
        progress.say(host, "cleared" if end.code == 0 else _last_line(end), done=end.code == 0)
    return [host for host, end in zip(hosts, ended, strict=True) if end.code != 0]


def _left(deadline: float) -> float:
    return max(1.0, deadline - time.monotonic())


def _last_line(ended: Ended) -> str:
    return ended.lines[-1] if ended.lines else _ended(ended)


def _ended(ended: Ended) -> str:
    return "not done in time" if ended.code is None else f"exit code {ended.code}"


def _told_by(what: str, ended: Ended) -> str:
    lines = [text for line in ended.lines if (text := launch_log.plain(line)).strip()]
    return "\n".join([f"{what}: {_ended(ended)}", *lines[-_TAIL_LINES:]])

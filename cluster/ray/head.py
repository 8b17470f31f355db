"""`pdserve ray-head`: what `ray-up` and `ray-down` have run on the head of a Ray cluster.

Owns the `up` that runs there on its own, its log, and the record by which the next command finds it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from bootstrap.errors import ConfigError
from cluster import runtime
from cluster.down import WAIT_S
from cluster.ray import launch_log
from cluster.ray.telling import Looked, fail, say, tell
from cluster.runtime import SupervisedWorker, UpRecord
from kv_transfer.backends.process import start_time

EXIT_FAILED = 1
_POLL_S = 0.3
_TAIL_LINES = 20
_AUTOSCALER_LOG = Path("/tmp/ray/session_latest/logs/monitor.out")


class _Record(msgspec.Struct, frozen=True):
    """The `up` that was started here, and with which flags."""

    pid: int
    start_time: int
    flags: tuple[str, ...]


def folder() -> Path:
    """Where a cluster's files lie on its hosts."""
    return Path.home() / ".pdserve"


def look() -> int:
    """Tell what runs here."""
    record = _running()
    flags = None if record is None else record.flags
    workers = () if record is None else _workers(record)
    tell(Looked(_ray_runs(), flags, sum(w.state == "serving" for w in workers), len(workers)))
    return 0


def start(flags: Sequence[str], num_engines: int, timeout_s: float) -> int:
    """Have `pdserve up` run with `flags` and watch it until `num_engines` serve; the exit code."""
    record = _running() or _spawn(flags)
    deadline = time.monotonic() + timeout_s
    said: dict[str, str] = {}
    while True:
        workers = _workers(record)
        for worker in workers:
            if said.get(worker.worker_id) != worker.stage:
                said[worker.worker_id] = worker.stage
                say(f"{worker.worker_id}: {worker.stage}")
        serving = [w for w in workers if w.state == "serving"]
        engines = [w for w in serving if w.role in ("prefill", "decode")]
        if workers and len(serving) == len(workers) and len(engines) >= num_engines:
            return 0
        if start_time(record.pid) != record.start_time:
            return _failed([*_log_tail(), "`pdserve up` ended"])
        if time.monotonic() > deadline:
            stages = [f"{w.worker_id}: {w.stage}" for w in workers if w.state != "serving"]
            count = f"{len(engines)} of {num_engines} engines serve after {timeout_s:.0f} s"
            return _failed([*_hosts_missing(), "; ".join([count, *stages])])
        time.sleep(_POLL_S)


def stop() -> int:
    """End the `up` that runs here, if one does."""
    record = _running()
    if record is None:
        say("no pdserve was running")
        return 0
    up = _up_record(record)
    os.kill(record.pid, signal.SIGTERM)
    deadline = time.monotonic() + WAIT_S + (up.drain_s if up is not None else 0.0)
    while start_time(record.pid) == record.start_time:
        if time.monotonic() > deadline:
            say(f"pdserve (pid {record.pid}) is still ending")
            return EXIT_FAILED
        time.sleep(_POLL_S)
    (folder() / "up.json").unlink(missing_ok=True)
    say("pdserve ended")
    return 0


def _spawn(flags: Sequence[str]) -> _Record:
    folder().mkdir(mode=0o700, exist_ok=True)
    with _log().open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster", "up", *map(_at_home, flags)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives the login that starts it
        )
    started = start_time(process.pid)
    record = _Record(process.pid, started or 0, tuple(flags))
    (folder() / "up.json").write_bytes(msgspec.json.encode(record))
    say(f"pdserve up: pid {process.pid}, log {_log()}")
    return record


def _at_home(flag: str) -> str:
    """With this user's home for a `~` that begins the value."""
    name, separator, value = flag.partition("=")
    return f"{name}{separator}{os.path.expanduser(value)}"


def _running() -> _Record | None:
    try:
        record = msgspec.json.decode((folder() / "up.json").read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return None
    return record if start_time(record.pid) == record.start_time else None


def _up_record(record: _Record) -> UpRecord | None:
    return next((up for up in runtime.running() if up.pid == record.pid), None)


def _workers(record: _Record) -> tuple[SupervisedWorker, ...]:
    up = _up_record(record)
    return () if up is None else runtime.supervision(up)


def _ray_runs() -> bool:
    from ray._private.services import find_gcs_addresses

    return bool(find_gcs_addresses())


def _hosts_missing() -> list[str]:
    """What is known of hosts that should be nodes of Ray and are not."""
    from cluster import ray_nodes, ray_session

    try:
        ray_session.join("auto")
    except ConfigError as error:
        return [str(error)]
    here = {node.address for node in ray_nodes.living()}
    ray_session.leave()
    text = _AUTOSCALER_LOG.read_text(errors="replace") if _AUTOSCALER_LOG.exists() else ""
    log = launch_log.read(text.splitlines())
    failures = {failure.host: str(failure) for failure in log.failures}
    config = yaml.safe_load((Path.home() / "ray_bootstrap_config.yaml").read_text())
    wanted = [*failures, *map(str, config["provider"].get("worker_ips", ()))]
    return [
        failures.get(host)
        or f"host {host}: {'no node of Ray now' if host in log.reached else 'not reached by SSH yet'}"
        for host in dict.fromkeys(wanted)
        if host not in here
    ]


def _log() -> Path:
    return folder() / "up.log"


def _log_tail() -> list[str]:
    return _log().read_text(errors="replace").splitlines()[-_TAIL_LINES:]


def _failed(words: Sequence[str]) -> int:
    fail("\n".join(words))
    return EXIT_FAILED

"""`pdserve up`: from settings to a serving cluster, and back to nothing.

Owns the order of start and end. What the parts are is `cluster.running`'s; how the screen looks is
`cluster.progress`'s.
"""

import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from bootstrap.errors import ConfigError, RemoteFault
from bootstrap.identity import Role
from bootstrap.security import Security
from cluster import logs, runtime
from cluster.api.keys import KeyFile
from cluster.api.tls import uvicorn_tls
from cluster.control import ControlServer
from cluster.guard import Guard
from cluster.processes import adopt_orphans, descendants, end_descendants
from cluster.progress import Progress
from cluster.running import RunningCluster
from cluster.runtime import RuntimeFolder, SupervisedWorker
from cluster.settings import ClusterSettings
from cluster.signals import Stopped, StopSignals
from engine.config import ModelConfig
from engine.model_source import resolve_model

POLL_S = 0.2
MAX_FAILED_STARTS = 3  # of one worker before the cluster has ever been ready
_KILL_TIMEOUT_S = 10.0
_SCREEN = "up"

log = logging.getLogger(__name__)


def up(settings: ClusterSettings) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. Raises ConfigError before anything starts."""
    _check_files(settings)
    settings = _with_checked_secret(settings)
    runtime.running()  # removes what dead ones left
    if settings.endpoint and not runtime.port_is_free(settings.host, settings.port):
        raise ConfigError(f"port={settings.port}: already in use on {settings.host}")
    signals = StopSignals()
    adopt_orphans()
    folder = RuntimeFolder.create()
    logs.configure(Role.SUPERVISOR, _SCREEN, settings.log)
    try:
        return _serve(settings, folder, signals)
    except Stopped:
        return 0
    finally:
        left = end_descendants(_KILL_TIMEOUT_S)
        folder.remove()
        if left:
            print(f"pdserve: still running: {left}", file=sys.stderr)


def _check_files(settings: ClusterSettings) -> None:
    """Raise ConfigError for keys and certificates that the endpoint could not use."""
    for name in ("api_key_file", "admin_key_file"):
        path = getattr(settings, name)
        if path is not None:
            KeyFile(name, path)
    uvicorn_tls(settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_key_password_file)


def _serve(settings: ClusterSettings, folder: RuntimeFolder, signals: StopSignals) -> int:
    progress, guard = Progress(), Guard(folder.path)
    cluster = None
    try:
        with progress.shown():
            model_dir = _fetch(settings, progress, signals)
            longest = ModelConfig.from_dir(model_dir).max_position_embeddings
            cluster = RunningCluster(settings.for_model(longest), model_dir, folder)
            with signals.kept():
                cluster.start(progress)
            guard.watch(descendants(os.getpid()))
            signals.check()
            folder.write_record(
                cluster.url, cluster.model_name, cluster.last_drain_s, cluster.admin_key_file
            )
            _wait_until_ready(cluster, progress, signals)
        guard.watch(descendants(os.getpid()))
        print(_announcement(settings, cluster), flush=True)
        _tend(cluster, folder, signals)
        return 0
    finally:
        if cluster is not None:
            print("pdserve: ending the cluster", file=sys.stderr)
            cluster.stop(signals)


def _tend(cluster: RunningCluster, folder: RuntimeFolder, signals: StopSignals) -> None:
    """Keep it running and take orders, until a signal."""
    control = ControlServer(folder.path, cluster.order, lambda: cluster.orders)
    control.start()
    try:
        while not signals.wait(POLL_S):
            cluster.tend()
    finally:
        control.stop()


def _with_checked_secret(settings: ClusterSettings) -> ClusterSettings:
    """Every process reads the secret for itself and none has this one's working folder."""
    if settings.secret_file is None:
        return settings
    # Links stay: a mounted secret's real place has another name on every host.
    path = Path(settings.secret_file).absolute()
    Security.from_file(path)
    return replace(settings, secret_file=str(path))


def _fetch(settings: ClusterSettings, progress: Progress, signals: StopSignals) -> Path:
    """The model's folder on this machine; made or downloaded when it is not there yet."""

    def report(stage: str, done: int, total: int) -> None:
        progress.say("model", stage, done / total if total else None)

    signals.raising = True
    try:
        progress.say("model", settings.model)
        model_dir = resolve_model(settings.model, report)
        progress.say("model", str(model_dir), done=True)
        return model_dir
    finally:
        signals.raising = False


def _wait_until_ready(cluster: RunningCluster, progress: Progress, signals: StopSignals) -> None:
    """Watch the start. Raises ConfigError or RemoteFault when there is no point in waiting on."""
    timeout_s = cluster.settings.start_timeout_s
    deadline = time.monotonic() + timeout_s
    while not cluster.is_ready():
        for worker in cluster.tend():
            _show(worker, progress)
            _check(worker)
        if time.monotonic() > deadline:
            stages = [f"{w.worker_id}: {w.stage}" for w in cluster.tend() if w.state != "serving"]
            raise RemoteFault("; ".join([f"not ready within start_timeout_s={timeout_s}", *stages]))
        signals.wait(POLL_S)
        signals.check()
    for worker in cluster.tend():
        _show(worker, progress)


def _show(worker: SupervisedWorker, progress: Progress) -> None:
    stage = worker.stage
    if worker.state in ("ending", "waiting"):
        stage = f"starts again: {worker.last_error}"
    progress.say(worker.worker_id, stage, done=worker.state == "serving")


def _check(worker: SupervisedWorker) -> None:
    if worker.last_error.startswith(ConfigError.__name__):  # as the supervisor tells errors
        raise ConfigError(f"{worker.worker_id} does not start: {worker.last_error}")
    if worker.num_restarts >= MAX_FAILED_STARTS:
        raise RemoteFault(f"{worker.worker_id} does not start: {worker.last_error}")


def _announcement(settings: ClusterSettings, cluster: RunningCluster) -> str:
    if not settings.endpoint:
        return f"""
pdserve runs {cluster.model_name} without an endpoint; load balancers find it at {cluster.bootstrap}
  engines: {settings.prefill} prefill, {settings.decode} decode; pages move by {settings.transfer}

Ctrl-C ends everything.
"""
    body = (
        f'{{"model": "{cluster.model_name}", "temperature": 0,'
        ' "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    made_key = cluster.admin_key_file if settings.admin_key_file is None else None
    key = "" if made_key is None else f"\n{cluster.url}/dashboard asks for the key in {made_key}\n"
    return f"""
pdserve serves {cluster.model_name} at {cluster.url}/v1
  engines: {settings.prefill} prefill, {settings.decode} decode; pages move by {settings.transfer}

  curl {cluster.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'
  pdserve chat --url {cluster.url}
  pdserve status --url {cluster.url}
{key}
Ctrl-C ends everything.
"""

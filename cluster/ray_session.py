"""A connection to Ray: a private one that lives and ends with this process, or one that runs already.

Owns how Ray is started, found and ended. Knows no actors.
"""

import os
import secrets
import socket
from pathlib import Path
from typing import Any

from bootstrap.errors import ConfigError, RemoteFault
from cluster.placement import check_addresses

_OBJECT_STORE_BYTES = 80 << 20  # Ray refuses less than 75 MiB; no request's bytes go there
_NUM_CPUS_AT_LEAST = 2
_CONNECT_TIMEOUT_S = 5.0

# Read by Ray's processes when they start. Ports that Ray would fix are the system's to choose.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # lines of different workers are different facts
    "RAY_DISABLE_WORKER_LOG_PREFIX": "1",  # our lines name their worker
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # it would make a crash of every SIGTERM
    "AUTOSCALER_METRIC_PORT": "0",
    "DASHBOARD_METRIC_PORT": "0",
}
_PRIVATE = {
    # Its control service comes back never: nobody need wait for it a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    # Ray would run workers at nice 15, so that any other program on the machine starves the engines.
    "RAY_worker_niceness": "0",
    # How long the cause of a death may take to be known before Ray says only that one happened.
    "RAY_timeout_ms_task_wait_for_death_info": "10000",
}


def start_private(folder: Path, num_actors: int) -> None:
    """Start a Ray of our own whose files lie in `folder`; only holders of its token may use it.

    Raises RemoteFault when it does not start, which a machine with too much to do may cause.

    Call it on the main thread: Ray's processes end with the thread that started them.
    """
    token_file = folder / "ray_token"
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_hex(32), encoding="ascii")
    os.environ.update({**_QUIET, **_PRIVATE})
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file)
    os.environ.pop("RAY_AUTH_TOKEN", None)  # it would win over the file
    temp_dir = folder / "ray"
    temp_dir.mkdir(mode=0o700)
    try:
        _init(
            address="local",
            _temp_dir=str(temp_dir),
            num_cpus=max(_NUM_CPUS_AT_LEAST, num_actors),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
        )
    except Exception as error:  # an edge: Ray raises bare ones
        said = " ".join(str(error).split())
        raise RemoteFault(f"Ray does not start on this machine; try again: {said}") from error


def join(address: str) -> None:
    """Connect to a running Ray, `auto` for the one of this host; raises ConfigError when none answers.

    Whoever runs it decides about its authentication: Ray's own variables and files hold the token.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if named not in ("", "auto"):
        _check_that_someone_listens(named)
    os.environ.update(_QUIET)
    try:
        _init(address=address)
    except (
        ConnectionError,
        ValueError,
        RuntimeError,
    ) as error:  # also: unequal versions, both named
        raise ConfigError(f"ray_address={address!r}: {' '.join(str(error).split())}") from error


def _check_that_someone_listens(address: str) -> None:
    """Ray itself would try for a very long time, deaf to signals."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"ray_address={address!r}: allowed are local, auto and HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"ray_address={address!r}: {error}") from error


def _init(**options: Any) -> None:
    import ray  # late: it reads the environment when it is imported

    ray.init(
        configure_logging=False,
        log_to_driver=True,
        namespace=f"pdserve-{os.getpid()}-{secrets.token_hex(4)}",
        **options,
    )


def node_address() -> str:
    """This node's address as the other nodes of the joined Ray reach it; ConfigError if they cannot."""
    import ray

    from cluster import ray_nodes

    check_addresses([node.address for node in ray_nodes.living()])
    return str(ray.util.get_node_ip_address())


def leave() -> None:
    """Disconnect; a private Ray ends. Idempotent."""
    import ray

    ray.shutdown()

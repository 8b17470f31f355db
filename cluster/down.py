"""`pdserve down`: end a running `up` of this user and say what became of it."""

import os
import signal
import sys
import time
from urllib.parse import urlsplit

from bootstrap.errors import ConfigError
from cluster import runtime
from cluster.runtime import UpRecord
from kv_transfer.backends.process import start_time

EXIT_FAILED = 1
WAIT_S = 30.0
MAX_PORT = 65535
_POLL_S = 0.05


def down(port: int | None) -> int:
    """Ask the `up` (that serves `port`) to end and wait; the exit code. None running is no error."""
    record = chosen(runtime.running(), port)
    if record is None:
        print("pdserve: no `up` of this user is running" + (f" on port {port}" if port else ""))
        return 0
    os.kill(record.pid, signal.SIGTERM)
    wait_s = WAIT_S + record.drain_s
    deadline = time.monotonic() + wait_s
    while start_time(record.pid) == record.start_time:
        if time.monotonic() > deadline:
            print(
                f"pdserve: {_named(record)} is still ending after {wait_s:.0f} s", file=sys.stderr
            )
            return EXIT_FAILED
        time.sleep(_POLL_S)
    print(f"pdserve: ended {_named(record)}")
    return 0


def chosen(records: list[UpRecord], port: int | None) -> UpRecord | None:
    """The one (that serves `port`), if there is one; raises ConfigError when there are several."""
    if port is not None:
        if not 1 <= port <= MAX_PORT:
            raise ConfigError(f"port={port}: allowed are 1 to {MAX_PORT}")
        records = [record for record in records if urlsplit(record.url).port == port]
    if len(records) > 1:
        ports = ", ".join(str(urlsplit(record.url).port) for record in records)
        raise ConfigError(f"port=None: several are running: allowed are {ports}")
    return records[0] if records else None


def _named(record: UpRecord) -> str:
    return f"{record.url} (pid {record.pid}, {record.model})"

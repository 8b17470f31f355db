"""A cluster to measure: `pdserve up` as its own process, the way a user runs it."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0


@contextmanager
def served(*flags: str, folder: str | None = None) -> Iterator[str]:
    """The base URL of a fresh cluster; it is ended with the block. `folder` holds other code to run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "cluster", "up", "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _wait_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"pdserve up ended with exit code {process.returncode}")
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the cluster was not ready within {START_TIMEOUT_S:g} s")


def model_name(url: str) -> str:
    """What the cluster calls its model."""
    name: str = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    return name


def histogram_totals(url: str, name: str) -> tuple[float, float]:
    """(sum, count) of one of the balancer's histograms."""
    found = {"sum": 0.0, "count": 0.0}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        for part in found:
            if line.startswith(f"{name}_{part} ") or line.startswith(f"{name}_{part}{{"):
                found[part] += float(line.rsplit(" ", 1)[1])
    return found["sum"], found["count"]

"""A client that asks and then only holds its connection, until it goes away unanswered."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.waiting import wait_for


@contextmanager
def waiting_client(
    cluster, path: str, body: Any, headers: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Sends a POST on entry, reads no answer, and closes its connection at the block's end."""
    host, port = cluster.url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    fields = {
        "Host": "x",
        "Content-Type": "application/json",
        "Content-Length": str(len(raw)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + raw)
        yield


def wait_for_requests(cluster, num: int) -> None:
    """Until so many HTTP requests are under way in the balancer."""
    tasks = cluster.server.server_state.tasks
    wait_for(lambda: len(tasks) == num, what=f"{num} requests under way")

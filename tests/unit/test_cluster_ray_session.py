"""Joining a Ray that is not there, and starting one that does not start."""

import os
import socket
from pathlib import Path

import pytest

from bootstrap.errors import ConfigError, RemoteFault
from cluster import ray_session


@pytest.mark.parametrize("address", ["nowhere", "host:", "host:port", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=f"ray_address='{address}'"):
        ray_session.join(address)


def test_an_address_where_nobody_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(address: tuple[str, int], timeout: float) -> socket.socket:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConfigError, match=r"ray_address='127\.0\.0\.1:6379': refused"):
        ray_session.join("127.0.0.1:6379")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6380")
    with pytest.raises(ConfigError, match=r"ray_address='127\.0\.0\.1:6380': refused"):
        ray_session.join("auto")


def test_a_ray_that_does_not_start_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(**options: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray_session, "_init", fail)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(RemoteFault, match="timed out during startup"):
        ray_session.start_private(tmp_path, 3)

"""Joining a Ray that is not there."""

import socket

import pytest

from bootstrap.errors import ConfigError
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

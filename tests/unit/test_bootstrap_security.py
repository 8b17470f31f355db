"""The cluster secret: who derives the same keys, and which secrets are refused."""

import logging
from pathlib import Path

import pytest

from bootstrap.errors import ConfigError
from bootstrap.security import MAX_SECRET_BYTES, Security
from bootstrap.sockets import numeric_address, own_address

SECRET = b"0123456789abcdef"


def write(path: Path, secret: bytes, mode: int = 0o600) -> Path:
    """A secret file."""
    path.write_bytes(secret)
    path.chmod(mode)
    return path


def test_equal_secrets_give_equal_keys_and_others_do_not(tmp_path: Path) -> None:
    one = Security.from_file(write(tmp_path / "one", SECRET))
    same = Security.from_file(write(tmp_path / "same", SECRET + b"\r\n"))
    other = Security.from_secret(SECRET[::-1])
    assert one == same
    assert one.secret_key != other.secret_key
    assert one.public_key != other.public_key


def test_keys_do_not_show_in_logs() -> None:
    security = Security.from_secret(SECRET)
    assert security.secret_key.decode() not in repr(security)
    assert security.public_key.decode() not in repr(security)


def test_short_missing_and_huge_secrets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        Security.from_file(write(tmp_path / "short", SECRET[:15] + b"\n"))
    with pytest.raises(ConfigError, match="absent"):
        Security.from_file(tmp_path / "absent")
    with pytest.raises(ConfigError, match="more than"):
        Security.from_file(write(tmp_path / "huge", b"x" * (MAX_SECRET_BYTES + 1)))


def test_a_secret_that_everyone_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Security.from_file(write(tmp_path / "private", SECRET))
        assert not caplog.records
        Security.from_file(write(tmp_path / "open", SECRET, 0o644))
    assert "readable by every user" in caplog.text


def test_addresses_are_numeric_and_ipv6_stands_in_brackets() -> None:
    assert numeric_address("bind_host", "127.0.0.1", secured=False) == "127.0.0.1"
    assert numeric_address("bind_host", "::1", secured=False) == "[::1]"
    assert numeric_address("bind_host", "[::1]", secured=False) == "[::1]"
    assert numeric_address("bind_host", "0.0.0.0", secured=True) == "0.0.0.0"


@pytest.mark.parametrize("host", ["", "no such host", "192.0.2.1", "0.0.0.0", "::"])
def test_hosts_that_need_a_secret_or_do_not_exist_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="bind_host"):
        numeric_address("bind_host", host, secured=False)


def test_peers_cannot_connect_to_a_wildcard() -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ConfigError, match="peers can connect"):
            own_address("bind_host", host, secured=True)

"""Key files: what is a key, what a change of the file does, and who may ask what."""

import logging
import os
from pathlib import Path

import pytest

from bootstrap.errors import ConfigError
from cluster.api import access, keys
from cluster.api.access import Keys
from cluster.api.keys import KeyFile
from cluster.balancer.settings import BalancerSettings


def write(path: Path, text: str) -> str:
    """Replace the file, as a rotation does."""
    partial = path.with_suffix(".new")
    partial.write_text(text)
    partial.replace(path)
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    write(path, "# of the web shop\n first-key \n\nsecond-key\n#third-key\n")
    return path


def test_every_line_but_comments_and_blanks_is_a_key(path: Path) -> None:
    file = KeyFile("api_key_file", str(path))
    assert file.allows("first-key")
    assert file.allows("second-key")
    for other in ("third-key", "#third-key", "", "first-ke", "first-key ", "FIRST-KEY", "\udcff"):
        assert not file.allows(other)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"# none\n", "holds no key"), (b"\xff\xfe", "not a text in UTF-8"), (b"", "holds no key")],
)
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"api_key_file=.*{why}"):
        KeyFile("api_key_file", str(path))


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        KeyFile("api_key_file", str(tmp_path / "none"))
    monkeypatch.setattr(keys, "MAX_FILE_BYTES", 8)
    with pytest.raises(ConfigError, match="over 8 bytes"):
        KeyFile("api_key_file", write(tmp_path / "large", "a-long-key\n"))


def test_a_changed_file_is_read_again(path: Path) -> None:
    file = KeyFile("api_key_file", str(path))
    write(path, "new-key\n")
    assert file.allows("new-key")
    assert not file.allows("first-key")


def test_reload_reads_a_file_whose_times_say_nothing(path: Path) -> None:
    file = KeyFile("api_key_file", str(path))
    before = path.stat()
    path.write_text(path.read_text().replace("first-key", "other-key"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not file.allows("other-key")
    file.reload()
    assert file.allows("other-key")


@pytest.mark.parametrize("broken", ["# emptied\n", None])
def test_a_broken_version_changes_nothing_and_is_told_once(
    path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = KeyFile("api_key_file", str(path))
    if broken is None:
        path.unlink()
    else:
        write(path, broken)
    assert file.allows("first-key")
    assert file.allows("second-key")
    assert len(caplog.records) == 1
    write(path, "new-key\n")
    assert not file.allows("first-key")
    assert file.allows("new-key")


def test_no_key_is_ever_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    file = KeyFile("api_key_file", str(path))
    file.allows("guessed-key")
    write(path, "new-key\n")
    file.allows("new-key")
    write(path, "")
    file.allows("new-key")
    assert "keys read" in caplog.text
    for key in ("first-key", "second-key", "new-key", "guessed-key"):
        assert key not in caplog.text


def test_all_keys_are_compared_whatever_matches(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = KeyFile("api_key_file", str(path))
    compared = []
    compare = keys.hmac.compare_digest
    monkeypatch.setattr(
        keys.hmac, "compare_digest", lambda a, b: (compared.append(a), compare(a, b))[1]
    )
    for given in ("first-key", "second-key", "neither"):
        compared.clear()
        file.allows(given)
        assert len(compared) == 2


# --- who may ask what ------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path: Path) -> Keys:
    settings = BalancerSettings(
        host="h",
        port=0,
        bootstrap="b",
        model_dir="m",
        model_name="m",
        api_key_file=write(tmp_path / "api", "client\n"),
        admin_key_file=write(tmp_path / "admin", "admin\n"),
    )
    return Keys.of(settings)


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/health", None, None),
        ("/ready", "wrong", None),
        ("/metrics", None, None),
        ("/v1/models", None, 401),
        ("/v1/models", "wrong", 401),
        ("/v1/models", "client", None),
        ("/v1/models", "admin", None),  # the status page's playground asks with it
        ("/status", None, 401),
        ("/nowhere", None, 401),
        ("/health/", None, 401),
        ("/admin/pause", None, 401),
        ("/admin/pause", "wrong", 401),
        ("/admin/pause", "client", 403),
        ("/admin/pause", "admin", None),
    ],
)
def test_each_path_has_its_keys(both: Keys, path: str, key: str | None, status: int | None) -> None:
    refusal = both.refusal(path, key)
    assert (None if refusal is None else refusal.status) == status


def test_without_files_everything_is_open_but_the_administrators_routes() -> None:
    keys = Keys()
    assert keys.refusal("/v1/models", None) is None
    refusal = keys.refusal("/admin/pause", "any")
    assert refusal is not None
    assert refusal.status == 404


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer  abc ", "abc"),
        (b"Basic abc", None),
        (b"Bearer ", None),
        (b"Bearerabc", None),
        (b"Bearer \xff", "\xff"),
    ],
)
def test_the_key_is_what_follows_bearer(header: bytes, key: str | None) -> None:
    assert access.given_key({"headers": [(b"authorization", header)]}) == key


def test_no_header_is_no_key() -> None:
    assert access.given_key({"headers": [(b"host", b"x")]}) is None

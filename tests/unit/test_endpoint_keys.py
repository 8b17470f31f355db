"""Which key `doctor` and `top` show: that of one's own `up`, a named file's, or the user's."""

from pathlib import Path

import pytest

from bootstrap.errors import ConfigError
from cluster import runtime
from cluster.endpoint import ADMIN_FILE_VARIABLE, KEY_VARIABLE, admin_header, key_header
from cluster.runtime import RuntimeFolder

URL = "http://127.0.0.1:8123"
OTHER = "http://127.0.0.1:8124"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runtime.ROOT_VARIABLE, str(tmp_path / "run"))
    monkeypatch.setenv(KEY_VARIABLE, "of-a-client")
    monkeypatch.delenv(ADMIN_FILE_VARIABLE, raising=False)


def shows(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_ones_own_up_tells_its_key_for_its_own_endpoint_alone(tmp_path: Path) -> None:
    folder = RuntimeFolder.create()
    path = folder.write_secret("admin-key")
    folder.write_record(URL, "m", 0.0, path)
    assert admin_header(URL) == shows(Path(path).read_text())
    assert admin_header(OTHER) == shows("of-a-client")
    assert key_header() == shows("of-a-client"), "requests show no administrator's key"


def test_an_up_without_administrators_is_asked_with_the_users_key() -> None:
    RuntimeFolder.create().write_record(URL, "m", 0.0)
    assert admin_header(URL) == shows("of-a-client")


def test_an_up_without_administrators_is_no_matter_of_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RuntimeFolder.create().write_record(URL, "m", 0.0)
    monkeypatch.setenv(ADMIN_FILE_VARIABLE, str(tmp_path / "nowhere"))
    assert admin_header(URL) == shows("of-a-client")


def test_a_file_of_ones_own_up_that_is_gone_is_told() -> None:
    RuntimeFolder.create().write_record(URL, "m", 0.0, "/nowhere/admins")
    with pytest.raises(ConfigError, match="administrators' keys: '/nowhere/admins': No such file"):
        admin_header(URL)


def test_the_first_key_of_the_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "admins"
    path.write_text("# who\n\n  first  \nsecond\n")
    monkeypatch.setenv(ADMIN_FILE_VARIABLE, str(path))
    assert admin_header(URL) == shows("first")


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"# nobody\n", "holds no key"), (b"\xff", "not a text in UTF-8"), (None, "No such file")],
)
def test_a_named_file_without_a_key_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    path = tmp_path / "admins"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(ADMIN_FILE_VARIABLE, str(path))
    with pytest.raises(ConfigError, match=f"administrators' keys: .*{why}"):
        admin_header(URL)

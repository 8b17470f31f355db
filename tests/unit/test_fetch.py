"""`pdserve fetch`: a folder is filled once, by whoever comes first, and never half."""

from pathlib import Path

import pytest

from bootstrap.errors import ConfigError
from cluster import fetch as fetching
from cluster.fetch import fetch
from tests.support.tiny_model import make_tiny_model


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "tiny")


def test_the_demo_model_is_fetched_once(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def ensure() -> Path:
        calls.append(1)
        return tiny

    monkeypatch.setattr(fetching, "ensure_demo_model", ensure)
    target = tmp_path / "models" / "demo"
    for _ in range(2):
        assert fetch("demo", str(target), None) == 0
        assert capsys.readouterr().out == f"{target}\n"
    assert len(calls) == 1
    weights = "model.safetensors"
    assert (target / weights).stat().st_ino == (tiny / weights).stat().st_ino  # no second copy


def test_a_fetch_that_broke_is_done_again_and_another_revision_too(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    def from_hub(model: str, revision: str | None, folder: Path) -> Path:
        seen.append(revision)
        if len(seen) == 1:
            folder.mkdir()
            raise ConfigError("the network broke")
        for path in tiny.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    monkeypatch.setattr(fetching, "fetch_from_hub", from_hub)
    target = str(tmp_path / "model")
    with pytest.raises(ConfigError, match="the network broke"):
        fetch("owner/name", target, "v1")
    for revision in ("v1", "v1", "v2"):
        fetch("owner/name", target, revision)
    assert seen == ["v1", "v1", "v2"]


def test_the_demo_model_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="revision='v1'"):
        fetch("demo", str(tmp_path / "x"), "v1")


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ConfigError, match="folder='/proc/models/x'"):
        fetch("demo", "/proc/models/x", None)

"""The file by which probes tell a process that moves from one that stands still."""

from pathlib import Path

import pytest

from engine.beat import VARIABLE, Beat


def test_the_file_is_there_from_the_first_touch_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "beat"
    path.touch()  # of an earlier process
    monkeypatch.setenv(VARIABLE, str(path))
    beat = Beat.from_environment()
    assert not path.exists()
    beat.touch()
    assert path.exists()
    beat.end()
    beat.end()
    assert not path.exists()


def test_without_the_variable_there_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    beat = Beat.from_environment()
    beat.touch()
    beat.end()

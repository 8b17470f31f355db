"""Forgetting one cluster leaves the notes of others."""

import json
import tempfile
from pathlib import Path

import pytest

from cluster.ray import notes


def test_one_cluster_is_forgotten_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    (tmp_path / "ray").mkdir()
    for name in ("mine", "other"):
        (tmp_path / "ray" / f"cluster-{name}.state").touch()
        (tmp_path / "ray" / f"cluster-{name}.lock").touch()
        cache = {"config": {"cluster_name": name}}
        (tmp_path / f"ray-config-{name}").write_text(json.dumps(cache))
    (tmp_path / "ray-config-odd").write_text("[")
    notes.forget("mine")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    others = ["ray-config-odd", "ray-config-other"]
    assert left == [*others, "ray/cluster-other.lock", "ray/cluster-other.state"]
    notes.forget("other")
    assert not (tmp_path / "ray").exists()

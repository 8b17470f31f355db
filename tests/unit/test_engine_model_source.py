"""Names of models and their folders, and the cache that builds a folder once."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from bootstrap.errors import ConfigError
from engine.model_cache import MANIFEST, cache_dir, ensure_folder
from engine.model_source import resolve_model
from tests.support.tiny_model import make_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PDSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def silent(stage, done, total):
    """Progress that no test looks at."""


class Build:
    """Writes one file and counts how often it was asked to."""

    def __init__(self, error=None):
        self.num_builds = 0
        self._error = error

    def __call__(self, folder: Path) -> None:
        self.num_builds += 1
        (folder / "weights").write_bytes(b"w" * 5000)
        if self._error is not None:
            raise self._error


def test_a_local_folder_is_itself(tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["config.json", "tokenizer.json", "m.gguf"], "GGUF weights; allowed is safetensors"),
        (["config.json", "pytorch_model.bin"], "pickled weights, which can run code"),
        (["config.json"], "neither model.safetensors nor"),
        (["model.safetensors", "tokenizer.json"], "config.json is missing"),
        (["model.safetensors.index.json", "config.json"], "tokenizer.json is missing"),
    ],
)
def test_folders_that_cannot_be_served_say_what_to_do(tmp_path, files, words):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=words):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("spec", ["/no/such/folder", "./x", "no-such-thing", "a/b/c"])
def test_names_that_are_nothing_say_what_is_allowed(spec):
    with pytest.raises(ConfigError, match="no such folder; allowed are 'demo', a Hugging Face"):
        resolve_model(spec)


@pytest.mark.parametrize("closed", ["model.safetensors", "tokenizer.json"])
def test_what_this_user_may_not_read_is_told_before_an_engine_tries(tmp_path, monkeypatch, closed):
    folder = make_tiny_model(tmp_path / "model")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != closed)  # root may all
    with pytest.raises(ConfigError, match=f"model='.*': {closed}: user .* may not read it: chmod"):
        resolve_model(str(folder))


def test_a_link_that_leads_nowhere_is_told(tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    (folder / "vocab.json").symlink_to("../blobs/none")
    with pytest.raises(ConfigError, match=r"vocab\.json: a link to \.\./blobs/none, which is not"):
        resolve_model(str(folder))


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ConfigError, match="a file; allowed are"):
        resolve_model(str(tmp_path / "m.gguf"))


def test_an_unreachable_hub_is_a_config_error(monkeypatch):
    import huggingface_hub

    def unreachable(spec, **options):
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ConfigError, match=r"owner/name.*no route to host; check the name"):
        resolve_model("owner/name")


def test_the_cache_follows_the_environment(monkeypatch):
    monkeypatch.delenv("PDSERVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/pdserve")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "pdserve"


def test_a_folder_is_built_once(cache):
    build = Build()
    assert ensure_folder("m", build, silent) == cache / "m"
    ensure_folder("m", build, silent)
    assert build.num_builds == 1
    assert sorted(p.name for p in cache.iterdir()) == ["m", "m.lock"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "no manifest", "bad manifest"])
def test_a_damaged_folder_is_built_anew(cache, damage):
    build = Build()
    weights = ensure_folder("m", build, silent) / "weights"
    if damage == "flip":
        weights.write_bytes(b"w" * 2500 + b"x" + b"w" * 2499)
    elif damage == "truncate":
        weights.write_bytes(b"w" * 4999)
    elif damage == "remove":
        weights.unlink()
    elif damage == "no manifest":
        (cache / "m" / MANIFEST).unlink()
    else:
        (cache / "m" / MANIFEST).write_text(json.dumps({"files": []}))
    ensure_folder("m", build, silent)
    assert build.num_builds == 2
    assert weights.read_bytes() == b"w" * 5000


def test_a_failed_build_leaves_nothing(cache):
    with pytest.raises(ConfigError, match="offline"):
        ensure_folder("m", Build(ConfigError("offline")), silent)
    assert [p.name for p in cache.iterdir()] == ["m.lock"]
    assert ensure_folder("m", Build(), silent).is_dir()


def test_a_killed_build_s_leftovers_are_removed(cache):
    (cache / "m.building-dead").mkdir(parents=True)
    ensure_folder("m", Build(), silent)
    assert sorted(p.name for p in cache.iterdir()) == ["m", "m.lock"]


def test_a_cache_that_cannot_be_written_says_so(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"PDSERVE_CACHE=.*allowed are writable folders"):
        ensure_folder("m", Build(), silent)


def _ensure_slowly(log, barrier):
    def build(folder: Path) -> None:
        with open(log, "a") as stream:
            stream.write("built\n")
        (folder / "weights").write_bytes(b"w")

    barrier.wait(20)
    ensure_folder("m", build, silent)


def test_processes_that_start_together_build_once(cache, tmp_path):
    context = multiprocessing.get_context("spawn")
    log, barrier = tmp_path / "log", context.Barrier(3)
    processes = [context.Process(target=_ensure_slowly, args=(log, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "built\n"

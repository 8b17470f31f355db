"""Folders that are built once per user and then only read: complete, checked, and shared.

A folder appears under its name by one rename, with a manifest of its files' sizes and checksums. Two
processes that want it at once build it once. A folder that differs from its manifest is built anew;
whoever mapped the old files keeps them.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from bootstrap.errors import ConfigError
from engine.progress import Progress

MANIFEST = "manifest.json"

_CHUNK_BYTES = 1 << 22


def cache_dir() -> Path:
    """`PDSERVE_CACHE`, or `pdserve` in the user's cache folder."""
    chosen = os.environ.get("PDSERVE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pdserve"


def ensure_folder(name: str, build: Callable[[Path], None], on_progress: Progress) -> Path:
    """The folder `name` of the cache, built by `build(empty folder)` where it is not whole.

    Raises ConfigError when the cache cannot be written; what `build` raises passes through.
    """
    root = cache_dir()
    folder = root / name
    if problem_with(folder, on_progress) is None:
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f"{name}.lock", on_progress):
            if problem_with(folder, on_progress) is not None:
                _build(folder, build)
    except OSError as error:
        raise ConfigError(
            f"PDSERVE_CACHE={str(root)!r}: {error}; allowed are writable folders with 1 GB free"
        ) from error
    return folder


def problem_with(folder: Path, on_progress: Progress) -> str | None:
    """Why `folder` cannot be used, or None when every file is what its manifest says."""
    try:
        files: dict[str, list[object]] = json.loads((folder / MANIFEST).read_bytes())["files"]
        total = sum(1 for _ in files)
        for done, (name, recorded) in enumerate(files.items()):
            on_progress("verify", done, total)
            if recorded != _fingerprint(folder / name):
                return f"{folder / name} differs from its manifest"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / MANIFEST}: {error!r}"
    on_progress("verify", total, total)
    return None


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    """Under the lock: so whatever half-built folder lies here belongs to nobody."""
    for stale in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
    try:
        built = scratch / "folder"
        built.mkdir()
        build(built)
        files = {path.name: _fingerprint(path) for path in sorted(built.iterdir())}
        (built / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")
        if folder.exists():
            folder.rename(scratch / "replaced")
        built.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fingerprint(path: Path) -> list[object]:
    """Size in bytes and xxh3 of the content: what finds damage, not what keeps out forgers."""
    hasher = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return [path.stat().st_size, hasher.hexdigest()]


@contextmanager
def _lock(path: Path, on_progress: Progress) -> Iterator[None]:
    """Hold the file's lock; it ends with the process, however that ends."""
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("wait for another process", 0, 1)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield

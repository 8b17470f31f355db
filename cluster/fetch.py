"""`pdserve fetch`: puts a model into a folder of the caller's choice, once.

Owns the folder's lock and the note of what is in it. Processes of several hosts that share the folder's
file system may fetch at once: one does the work, and none asks the network when the work is done.
"""

import fcntl
import os
import re
import shutil
import sys
from pathlib import Path

import msgspec

from bootstrap.errors import ConfigError
from engine.demo_model import ensure_demo_model
from engine.model_folder import check_folder
from engine.model_source import DEMO, fetch_from_hub

_NOTE = ".pdserve-fetched.json"
_REVISION = re.compile(r"[\w./-]+")


class _Fetched(msgspec.Struct, frozen=True):
    model: str
    revision: str | None


def fetch(model: str, folder: str, revision: str | None) -> int:
    """Fill `folder` with `demo` or a model of the hub; the exit code. Raises ConfigError."""
    wanted, target = _Fetched(model, revision), Path(folder).absolute()
    if revision is not None and (model == DEMO or not _REVISION.fullmatch(revision)):
        raise ConfigError(f"revision={revision!r}: allowed are revisions of a model on the hub")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(f".{target.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _note(target) != wanted:
                _fill(target, wanted)
    except OSError as error:
        raise ConfigError(f"folder={folder!r}: {error}") from error
    print(check_folder(target))
    return 0


def _fill(target: Path, wanted: _Fetched) -> None:
    print(f"fetching {wanted.model} into {target}", file=sys.stderr)
    if wanted.model == DEMO:
        shutil.copytree(
            ensure_demo_model(), target, dirs_exist_ok=True, copy_function=_link_or_copy
        )
    else:
        fetch_from_hub(wanted.model, revision=wanted.revision, folder=target)
    (target / _NOTE).write_bytes(msgspec.json.encode(wanted))


def _link_or_copy(source: str, target: str) -> None:
    """The cache is mostly on the same file system: no second copy of the weights there."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # it is on another one, or one without links
        shutil.copyfile(source, target)


def _note(target: Path) -> _Fetched | None:
    """What is in the folder; None unless it is whole."""
    try:
        return msgspec.json.decode((target / _NOTE).read_bytes(), type=_Fetched)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None

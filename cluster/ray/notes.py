"""What Ray's launcher keeps of a cluster on the machine where it runs, and how it is forgotten.

As Ray 2.60 names them: notes of fixed hosts, cached cluster files, sockets of ssh connections.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from tempfile import gettempdir

_NUM_HASH_CHARS = 10


def folder() -> str:
    """Below it, in `ray`, are the notes of fixed hosts."""
    return os.environ.get("RAY_TMPDIR") or gettempdir()


def forget(name: str) -> None:
    """Remove all that is kept of the cluster of that name, and folders that are empty then."""
    notes = Path(folder(), "ray")
    for path in (notes / f"cluster-{name}.state", notes / f"cluster-{name}.lock"):
        path.unlink(missing_ok=True)
    for path in Path(gettempdir()).glob("ray-config-*"):
        if _name_in(path) == name:
            path.unlink(missing_ok=True)
    own = hashlib.sha256(name.encode()).hexdigest()[:_NUM_HASH_CHARS]
    sockets = list(Path("/tmp").glob(f"ray_ssh_*/{own}"))
    for path in sockets:
        shutil.rmtree(path, ignore_errors=True)
    for path in (notes, *(path.parent for path in sockets)):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _name_in(cache: Path) -> str | None:
    try:
        name = json.loads(cache.read_bytes())["config"]["cluster_name"]
    except (OSError, ValueError, KeyError, TypeError):  # not ours to read, or of another kind
        return None
    return str(name)

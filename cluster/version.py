"""Which pdserve this is."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """The distribution's version."""
    try:
        return version("pdserve")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0 (not installed)"

"""How the head's side speaks to the launcher's: marked lines among whatever a login shell prints."""

from collections.abc import Sequence

import msgspec

_SAID = "pdserve: "
_LOOKED = "pdserve-looked: "
_FAILED = "pdserve-failed: "


class Looked(msgspec.Struct, frozen=True):
    """What runs on the head: Ray, and an `up` with these flags, if any."""

    ray: bool
    flags: tuple[str, ...] | None
    num_serving: int
    num_workers: int


def say(words: str) -> None:
    """A line for people."""
    print(f"{_SAID}{words}", flush=True)


def said(line: str) -> str | None:
    """What `say` was given, if the line is one of its."""
    return line[len(_SAID) :].rstrip() if line.startswith(_SAID) else None


def fail(words: str) -> None:
    """What the launcher should end with; may have several lines."""
    print(_FAILED + msgspec.json.encode(words).decode(), flush=True)


def failure(lines: Sequence[str]) -> str | None:
    """What `fail` was given, if one of the lines is its."""
    for line in lines:
        if line.startswith(_FAILED):
            return msgspec.json.decode(line[len(_FAILED) :], type=str)
    return None


def tell(looked: Looked) -> None:
    """A line for the launcher."""
    print(_LOOKED + msgspec.json.encode(looked).decode(), flush=True)


def told(lines: Sequence[str]) -> Looked | None:
    """What `tell` was given, if one of the lines is its."""
    for line in lines:
        if line.startswith(_LOOKED):
            return msgspec.json.decode(line[len(_LOOKED) :], type=Looked)
    return None

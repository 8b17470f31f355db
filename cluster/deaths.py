"""What an actor died of, in a line: Ray's account without its ids and its advice."""

import re
from typing import Any

import ray

_MAX_CHARS = 600


def last_words(run: Any) -> str | None:
    """What a finished life that ended in order said; None of one that broke."""
    try:
        return str(ray.get(run))
    except ray.exceptions.RayError:
        return None


def why(run: Any) -> str:
    """What a finished life died of; `run` is the ObjectRef of all of it."""
    try:
        ray.get(run)
    except ray.exceptions.RayTaskError as error:
        return f"{type(error.cause).__name__}: {error.cause}"[:_MAX_CHARS]
    except ray.exceptions.RayError as error:
        return told_shortly(str(error))[:_MAX_CHARS]
    return "ended without being told to"


def told_shortly(death: str) -> str:
    """Ray's account of a dead process."""
    text = " ".join(death.split())
    pid = re.search(r"\bpid: (\d+)", text)
    detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes|$)", text)
    process = "process" if pid is None else f"process {pid.group(1)}"
    return f"{process} died: {text if detail is None else detail.group(1)}"

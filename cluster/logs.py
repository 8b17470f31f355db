"""How every process of a cluster logs: one line per event, naming who says it.

Owns the line's shape and the level. Where the lines go is decided by whoever started the process.
"""

import logging
import sys

from bootstrap.identity import Role

_LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s {who} %(name)s: %(message)s"
_CLOCK = "%H:%M:%S"

# Third parties that say at `info` what only their own authors need.
_QUIETER = ("httpx", "httpcore", "urllib3", "filelock", "huggingface_hub", "asyncio")


def configure(role: Role, worker_id: str, level: str, incarnation: str | None = None) -> None:
    """Send this process's log to stderr; call again once the incarnation is known."""
    who = worker_id if incarnation is None else f"{worker_id}@{incarnation[:6]}"
    if not worker_id.startswith(role.value):
        who = f"{role.value} {who}"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_LINE.format(who=who.replace("%", "%%")), _CLOCK))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIETER:
        logging.getLogger(name).setLevel(logging.WARNING)

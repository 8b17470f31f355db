"""How every process of a cluster logs: one line per event, naming who says it.

Owns the line's shape, as text or as JSON, and the level. Where the lines go is decided by whoever
started the process.
"""

import json
import logging
import sys
from dataclasses import dataclass
from datetime import datetime, timezone

from bootstrap.identity import Role

FORMATS = ("text", "json")

_LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s {who} %(name)s: %(message)s"
_CLOCK = "%H:%M:%S"

# Facts that a line may carry beside its message, by `extra`.
_FACTS = ("request_id", "attempt", "room")

# Third parties that say at `info` what only their own authors need.
_QUIETER = (
    "httpx",
    "httpcore",
    "urllib3",
    "filelock",
    "huggingface_hub",
    "asyncio",
    "opentelemetry",
)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The least level that is told, one of the `logging` module's in lower case, and one of FORMATS."""

    level: str = "info"
    format: str = "text"


DEFAULT_LOG = LogSettings()


def configure(
    role: Role, worker_id: str, settings: LogSettings, incarnation: str | None = None
) -> None:
    """Send this process's log to stderr; call again once the incarnation is known."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(_JsonLines(role, worker_id, incarnation))
    else:
        handler.setFormatter(_text_lines(role, worker_id, incarnation))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for name in _QUIETER:
        logging.getLogger(name).setLevel(logging.WARNING)


def _text_lines(role: Role, worker_id: str, incarnation: str | None) -> logging.Formatter:
    who = worker_id if incarnation is None else f"{worker_id}@{incarnation[:6]}"
    if not worker_id.startswith(role.value):
        who = f"{role.value} {who}"
    return logging.Formatter(_LINE.format(who=who.replace("%", "%%")), _CLOCK)


class _JsonLines(logging.Formatter):
    """One object per line: time (UTC), level, who, logger, message, and what else is known."""

    def __init__(self, role: Role, worker_id: str, incarnation: str | None) -> None:
        super().__init__()
        self._who = {"role": role.value, "worker": worker_id, "incarnation": incarnation}

    def format(self, record: logging.LogRecord) -> str:
        """As the base class does, in JSON."""
        said = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            **self._who,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in _FACTS if hasattr(record, name)},
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)

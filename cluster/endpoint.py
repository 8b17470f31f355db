"""Which endpoint a command means when it was told none, the key that it shows there, what errors say."""

import json
import os
from typing import Any

from bootstrap.errors import ConfigError
from cluster import runtime

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_REASON_CHARS = 200
KEY_VARIABLE = "PDSERVE_API_KEY"  # not a flag: everybody on a machine sees flags


def choose_url(given: str | None) -> str:
    """`given`, else the one `up` of this user, else the default; raises ConfigError to choose."""
    if given is not None:
        if not given.startswith(("http://", "https://")):
            raise ConfigError(f"url={given!r}: http://HOST:PORT is needed")
        return given.rstrip("/")
    urls = [record.url for record in runtime.running() if record.url.startswith("http")]
    if len(urls) > 1:
        raise ConfigError(f"url=None: several are running: allowed are {', '.join(urls)}")
    return urls[0] if urls else DEFAULT_URL


def key_header() -> dict[str, str]:
    """The header that shows the user's API key, if the environment has one."""
    key = os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def error_message(text: str) -> str:
    """What an endpoint's error body says; the beginning of `text` where it is no such body."""
    try:
        error: Any = json.loads(text)["error"]
        return str(error["message"])
    except (ValueError, KeyError, TypeError):
        return text[:MAX_REASON_CHARS]

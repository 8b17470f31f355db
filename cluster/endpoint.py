"""Which endpoint a command means when it was told none, the key that it shows there, what errors say."""

import json
import os
from pathlib import Path
from typing import Any

from bootstrap.errors import ConfigError
from cluster import runtime
from cluster.api.keys import keys_in

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_REASON_CHARS = 200
KEY_VARIABLE = "PDSERVE_API_KEY"  # not a flag: everybody on a machine sees flags
ADMIN_FILE_VARIABLE = "PDSERVE_ADMIN_KEY_FILE"


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
    return _header(os.environ.get(KEY_VARIABLE))


def admin_header(url: str) -> dict[str, str]:
    """The header that shows an administrator's key to `url`, for `/debug/`.

    The first of the file that this user's own `up` there reads; for any other `url` of the file that the
    environment names; where there is no such file the user's API key. Raises ConfigError for a file that
    holds none.
    """
    own = runtime.running_at(url)
    named = os.environ.get(ADMIN_FILE_VARIABLE)
    if own is not None:
        named = own.admin_key_file
    return _header(_first_key(named)) if named else key_header()


def _header(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _first_key(path: str) -> str:
    try:
        keys = keys_in(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text in UTF-8"
        raise ConfigError(f"administrators' keys: {path!r}: {why}") from None
    if not keys:
        raise ConfigError(f"administrators' keys: {path!r}: holds no key")
    return keys[0]


def error_message(text: str) -> str:
    """What an endpoint's error body says; the beginning of `text` where it is no such body."""
    try:
        error: Any = json.loads(text)["error"]
        return str(error["message"])
    except (ValueError, KeyError, TypeError):
        return text[:MAX_REASON_CHARS]

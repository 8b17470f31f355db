"""HTTPS: the certificate and key of the endpoint, checked before anything starts.

Owns how the three files become uvicorn's settings. Knows no sockets.
"""

import ssl
from pathlib import Path
from typing import Any

from bootstrap.errors import ConfigError


def uvicorn_tls(
    certfile: str | None, keyfile: str | None, password_file: str | None
) -> dict[str, Any]:
    """Arguments of `uvicorn.Config`; none without a certificate. Raises ConfigError.

    The password's file holds it on its first line.
    """
    if certfile is None:
        return {}
    password = _password(password_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def give_password() -> str:  # without one OpenSSL would ask on the terminal
        if password is None:
            raise ConfigError("ssl_key_password_file=None: the key is encrypted")
        return password

    try:
        context.load_cert_chain(certfile, keyfile, give_password)
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"ssl_certfile={certfile!r} ssl_keyfile={keyfile!r}: {error.strerror or error}"
        ) from error
    return {
        "ssl_certfile": certfile,
        "ssl_keyfile": keyfile,
        "ssl_keyfile_password": password,
    }


def _password(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text in UTF-8"
        raise ConfigError(f"ssl_key_password_file={path!r}: {why}") from error
    if not lines or not lines[0]:
        raise ConfigError(f"ssl_key_password_file={path!r}: no password on its first line")
    return lines[0]

"""Who may ask what: keys of clients and of administrators, checked before a body is read.

Owns which paths are open. Without a key file clients need no key; without an administrators' key file
there are no administrators' routes at all, and what shows other users' requests (`/debug/`) is for this
machine alone.
"""

from dataclasses import dataclass

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.addresses import is_loopback
from cluster.api.errors import ApiError
from cluster.api.keys import KeyFile, key_digest
from cluster.balancer.settings import BalancerSettings

ADMIN_PREFIX = "/admin/"
DEBUG_PREFIX = "/debug/"
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
OPEN_PREFIX = "/dashboard"  # a page without facts: those come from `/debug/`

_BEARER = "bearer "
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
_NOT_LOCAL = (
    "Others than this machine's users can reach this server, or sent this request, so this route asks for"
    " an administrator's key, and the server has no file of them (--admin-key-file)."
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Both kinds of keys; None where no file is set. `local` when only this machine can connect."""

    clients: KeyFile | None = None
    admins: KeyFile | None = None
    local: bool = False

    @classmethod
    def of(cls, settings: BalancerSettings) -> "Keys":
        """Read the files; raises ConfigError."""
        return cls(
            _key_file("api_key_file", settings.api_key_file),
            _key_file("admin_key_file", settings.admin_key_file),
            is_loopback(settings.host),
        )

    def reload(self) -> None:
        """Read all files again."""
        for keys in (self.clients, self.admins):
            if keys is not None:
                keys.reload()

    def refusal(self, path: str, given: str | None, *, direct: bool = True) -> ApiError | None:
        """Why a request for `path` with the key `given` is refused, or None when it is not.

        `direct` when nothing says that somebody else's machine or page is behind it.
        """
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return None
        if path.startswith(ADMIN_PREFIX):
            return self._admin_refusal(path, given)
        if path.startswith(DEBUG_PREFIX):
            if self.admins is not None:
                return self._admin_refusal(path, given)
            if not (self.local and direct):
                return ApiError(403, _NOT_LOCAL, code="forbidden")
        if self.clients is None or self._knows(given):
            return None
        return _unauthorized(given)

    def _knows(self, given: str | None) -> bool:
        """Administrators may ask what clients may."""
        if given is None:
            return False
        asked = [keys.allows(given) for keys in (self.clients, self.admins) if keys is not None]
        return any(asked)

    def _admin_refusal(self, path: str, given: str | None) -> ApiError | None:
        if self.admins is None:
            return ApiError(404, f"{path}: Not Found")
        if given is None:
            return _unauthorized(given)
        if self.admins.allows(given):
            return None
        if self.clients is not None and self.clients.allows(given):
            return ApiError(403, "This key may not administer the server.", code="forbidden")
        return _unauthorized(given)


class Access:
    """ASGI middleware: what is refused reaches no handler, and its body is never read.

    Where clients have keys, `request.state.tenant` tells one key from another, and not what it is.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        app: ASGIApp = self._app
        if scope["type"] == "http":
            given = given_key(scope)
            error = self._keys.refusal(scope["path"], given, direct=_is_direct(scope))
            if given is not None and self._keys.clients is not None:
                scope.setdefault("state", {})["tenant"] = key_digest(given).hex()[:16]
            if error is not None:
                app = JSONResponse(error.body, error.status, error.headers)
        await app(scope, receive, send)


def given_key(scope: Scope) -> str | None:
    """The key of `Authorization: Bearer KEY`, or None."""
    for name, value in scope["headers"]:
        text: str = value.decode("latin-1")
        if name == b"authorization" and text.lower().startswith(_BEARER):
            return text[len(_BEARER) :].strip() or None
    return None


def _is_direct(scope: Scope) -> bool:
    """Whether the request names this machine as its own and no proxy passed it on.

    A proxy here carries others' requests, and so does a browser here that was led to believe that
    some other site's name is this machine's address: what comes by loopback need not be from here.
    """
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    if not headers.keys().isdisjoint(_FORWARDED):
        return False
    host = headers.get(b"host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return is_loopback(name.strip("[]"))


def _unauthorized(given: str | None) -> ApiError:
    message = "Incorrect API key provided."
    if given is None:
        message = (
            "You didn't provide an API key. Send one in an Authorization header, as"
            " 'Authorization: Bearer KEY'."
        )
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _key_file(name: str, path: str | None) -> KeyFile | None:
    return None if path is None else KeyFile(name, path)

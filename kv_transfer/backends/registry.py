"""Transports by name. A library is imported only when its transport is chosen."""

from bootstrap.errors import ConfigError
from kv_transfer.backends.port import TransferBackend

_INSTALL = {
    "nixl": "pip install nixl",
    "mooncake": "pip install mooncake-transfer-engine-non-cuda (on Debian and Ubuntu also: "
    "apt install libibverbs1 librdmacm1 libnuma1)",
}


def make_backend(name: str, agent_name: str, host: str) -> TransferBackend:
    """A transport that says it is `agent_name`, reachable at `host` (an address of this machine).

    Raises ConfigError for an unknown name, or when the library is missing or cannot start.
    """
    try:
        return _construct(name, agent_name, host)
    except ImportError as error:
        raise ConfigError(
            f"transfer={name!r}: its library does not load ({error}); try: {_INSTALL[name]}"
        ) from error


def _construct(name: str, agent_name: str, host: str) -> TransferBackend:
    if name == "nixl":
        from kv_transfer.backends.nixl import NixlBackend

        return NixlBackend(agent_name, host)
    if name == "mooncake":
        from kv_transfer.backends.mooncake import MooncakeBackend

        return MooncakeBackend(agent_name, host)
    if name == "fake":
        from kv_transfer.backends.fake import FakeBackend

        return FakeBackend(agent_name)
    raise ConfigError(f"transfer={name!r}: allowed are nixl, mooncake, fake")

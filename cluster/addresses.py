"""What an address says of who can reach it."""

from ipaddress import ip_address


def is_loopback(address: str) -> bool:
    """Whether it leads every host to itself; of names only `localhost` does."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"

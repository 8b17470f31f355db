"""Cutting the connections from a host on which nobody is left, so that nothing it sent can arrive later.

When a process ends, its kernel still delivers what was written to its sockets, and when its host drops
out of the network it goes on trying for many minutes. For a target there is one way to be safe from that
tail: a socket of ours that is shut down takes what has already come and answers more with a reset
(RFC 9293, 3.6.1; Linux resets on data after `shutdown` for reading). RDMA needs none of this: its
hardware gives a connection up after seconds.
"""

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit


def host_of(endpoint: str) -> str:
    """The host in `tcp://HOST:PORT`, without brackets."""
    return urlsplit(endpoint).hostname or ""


def is_deserted(endpoint: str, others: Iterable[str]) -> bool:
    """Whether none of the endpoints `others` is on the host of `endpoint`.

    Only addresses can be compared: a host with a name counts as none of the others, and is never deserted.
    """
    host = _address(host_of(endpoint))
    return host is not None and host not in {_address(host_of(other)) for other in others}


def sever(host: str) -> int:
    """Shut down this process's TCP connections with the address `host`; how many there were.

    Whoever owns one sees its end as if the other side had closed it. What had come by then can still be
    read; nothing comes after it. Raises OSError where no file descriptor is left to look with.
    """
    num_cut = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            duplicate = os.dup(int(name))  # pins what it names: numbers are reused
        except OSError as error:
            if error.errno != errno.EBADF:  # the listing's own, or closed since
                raise
            continue
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:  # no socket
            os.close(duplicate)
            continue
        with connection:
            num_cut += _cut(connection, _address(host))
    return num_cut


def _cut(connection: socket.socket, host: object) -> bool:
    try:
        if connection.type != socket.SOCK_STREAM or _peer_of(connection) != host:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # not connected, or not any more
        return False
    return True


def _peer_of(connection: socket.socket) -> object:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    return _address(connection.getpeername()[0].partition("%")[0])


def _address(host: str) -> object:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address

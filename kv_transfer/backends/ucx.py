"""How UCX, the library under NIXL, is set up; and what it will use on this machine.

Nothing here overrides a variable that the user has set. UCX reads them when the first agent starts.
What is set, and why:

`UCX_MODULES=^ib` where no RDMA device exists: the wheel's RDMA module brings its own libibverbs and
libnl; beside Debian's libibverbs1 the process then crashes at exit.

`UCX_TLS=^posix,sysv`: shared-memory writes go by CMA (`process_vm_writev`: one copy, no shared segment,
no help from the target), everything else by TCP or RDMA. The two transports left out need a ring
buffer and the target's help, and are no faster than loopback TCP. Where CMA is not allowed (a seccomp
filter, `ptrace_scope` 3) or cannot reach (another pid namespace, as between two pods) UCX finds out by
itself and takes TCP. Not set where an NVIDIA driver is present: NIXL wants CUDA transports listed.

`UCX_NET_DEVICES` is the interface that holds our address: else UCX may offer a bridge such as docker0
that no peer can reach, and listens, without authentication, on every interface.

`UCX_TCP_CONN_NB=y`: connecting to a host that drops packets would otherwise block the caller.
"""

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

from kv_transfer.backends.process import ProcessTag, is_local

_SIOCGIFADDR = 0x8915  # netdevice(7)


def set_defaults(host: str) -> None:
    """Prepare the environment for an agent reachable at `host`."""
    defaults = {"UCX_TCP_CONN_NB": "y", "UCX_LOG_LEVEL": "warn", "NIXL_LOG_LEVEL": "WARN"}
    if not has_rdma():
        defaults["UCX_MODULES"] = "^ib"
        interface = _interface_of(host)
        if interface:
            defaults["UCX_NET_DEVICES"] = interface
    if not os.path.exists("/dev/nvidiactl"):
        defaults["UCX_TLS"] = "^posix,sysv"
    for key, value in defaults.items():
        os.environ.setdefault(key, value)


def has_rdma() -> bool:
    """Whether this host has an RDMA device."""
    return any(Path("/sys/class/infiniband").glob("*"))


def may_write_directly(process: ProcessTag, address: int) -> bool:
    """Whether the kernel lets us reach `address` in `process`, a byte being read to find out.

    `process_vm_readv` asks the same permission as the write that CMA does (process_vm_readv(2)).
    """
    if not is_local(process):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    byte = ctypes.create_string_buffer(1)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)  # struct iovec: base, length
    remote = (ctypes.c_size_t * 2)(address, 1)
    one, no_flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    return bool(libc.process_vm_readv(process.pid, local, one, remote, one, no_flags) == 1)


def allows_shared_memory() -> bool:
    """Whether `UCX_TLS` lets UCX use CMA."""
    setting = os.environ.get("UCX_TLS", "all")
    names = set(setting.removeprefix("^").split(","))
    listed = bool(names & {"cma", "sm", "shm", "all"})
    return not listed if setting.startswith("^") else listed


def _interface_of(host: str) -> str | None:
    """The interface whose first IPv4 address is `host`; all of 127/8 is the loopback's."""
    try:
        address = ipaddress.ip_address(socket.gethostbyname(host))
    except (OSError, ValueError):
        return None
    if address.is_loopback:
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name[:15].encode())
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            if answer[20:24] == address.packed:
                return name
    return None

"""Network interfaces of this machine: which one reaches a host, and what to do if gloo has chosen another."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from contextlib import suppress

from ...environments.local import GLOO_INTERFACE

# Of Linux: asks for an interface's address. It fills a struct ifreq, whose address follows 20 bytes.
_SIOCGIFADDR = 0x8915
_UNREACHED = re.compile(r"connectFullMesh|[Cc]onnect timeout|timed out connecting|find address|makeDevice|getaddrinfo")


def named_address() -> str:
    """The address that this machine's name stands for; empty if none."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def is_loopback(address: str) -> bool:
    """Whether no other machine can reach this address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def interface_towards(host: str) -> str:
    """The interface by which this machine reaches ``host``; empty if that cannot be said, as where it is not Linux."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return ""
    return next((name for name, each in _addresses().items() if each == own), "")


def advice(error: BaseException) -> str:
    """The remedy for an error of gloo if the network interface may be the cause; else empty."""
    if not _UNREACHED.search(str(error)):
        return ""
    found = [f"{name!r} ({address})" for name, address in _addresses().items() if not is_loopback(address)]
    here = f" Interfaces of this machine: {', '.join(found)}." if found else ""
    named = named_address()
    own = f"the address that this machine's name stands for, {named}" if named else "that of this machine's name"
    return (
        f". Gloo listens at the interface that {GLOO_INTERFACE} names; without it, at {own}. If the other machines "
        f"cannot reach that, set {GLOO_INTERFACE} on each machine.{here}"
    )


def _addresses() -> dict[str, str]:
    """By interface, its IPv4 address; those without one are left out. Empty where this is not Linux."""
    found: dict[str, str] = {}
    try:
        import fcntl

        names = [name for _, name in socket.if_nameindex()]
    except (ImportError, OSError):
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for name in names:
            with suppress(OSError):
                answer = fcntl.ioctl(one.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found

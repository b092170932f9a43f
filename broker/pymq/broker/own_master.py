"""Whether the master that a slave is told to follow is the slave itself, however it is spelled."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress

from pymq.protocol.addresses import split_address

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_own(master: str, address: str, ports: set[int]) -> bool:
    """Return whether a master's address is that of this broker.

    A name is looked up, which may take a while, only if the port is one of ours.

    Args:
        master: ``host:port``.
        address: ``host:port`` that this broker tells its clients.
        ports: that it listens on, or would as a master.
    """
    host, port = split_address(master)
    if port not in ports:
        return False
    return host == split_address(address)[0] or any(map(_is_here, _addresses_of(host)))


def _addresses_of(host: str) -> Iterator[_Address]:
    with suppress(OSError, UnicodeError):  # Who follows it says that it cannot be looked up.
        for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
            yield ipaddress.ip_address(str(place[0]).partition("%")[0])


def _is_here(address: _Address) -> bool:
    """Return whether an address is one of this machine, or means all of them."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))  # An address of another machine is refused.
    except OSError:
        return False
    return True

"""The addresses of this machine that its peers see."""

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress

from pymq.protocol.addresses import split_address


def own_addresses(peers: Iterable[str]) -> list[str]:
    """Return from which addresses of this machine peers would be connected to, each once.

    The system's routes tell: nothing is sent, and no peer needs to be there. But names are looked
    up, so call it in a thread.

    Args:
        peers: ``host:port`` of each; one that cannot be looked up, or has no route, is left out.
    """
    found: dict[str, None] = {}
    for peer in peers:
        try:
            places = socket.getaddrinfo(*split_address(peer), type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            continue
        for family, kind, protocol, _, place in places:
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(place)
                host = str(probe.getsockname()[0]).partition("%")[0]
                found[str(ipaddress.ip_address(host))] = None
    return list(found)

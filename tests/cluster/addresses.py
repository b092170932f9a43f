"""Which addresses this machine has."""

import socket


def has_ipv6() -> bool:
    """Tell whether there is an IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True

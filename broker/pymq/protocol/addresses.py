"""Addresses written as ``host:port``."""

import re

from pymq.errors import ConfigurationError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)(.*)")
_HOST = re.compile(r"[^\s\x00-\x1f\x7f/@?#\\]+")


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; an IPv6 address may be in brackets.

    Raises:
        ConfigurationError: it does not have that form.
    """
    if url := _URL.fullmatch(address):
        scheme, host_port, path = url.groups()
        meant = host_port if ":" in host_port and not path.strip("/") else "127.0.0.1:9876"
        raise ConfigurationError(
            f"address {address!r} is a URL, expected host:port without {scheme!r}, such as {meant}"
        )
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and len(port) < 10  # or int() refuses it
    is_port = is_number and 0 < int(port) < 65536
    if not (colon and is_port and _HOST.fullmatch(host)):
        raise ConfigurationError(
            f"address {address!r}, expected host:port with a port of 1..65535, "
            "such as 127.0.0.1:9876"
        )
    return host, int(port)

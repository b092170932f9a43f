"""``host:port`` texts."""

from pymq.errors import ConfigurationError


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; an IPv6 address may be in brackets.

    Raises:
        ConfigurationError: it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(
            f"address {address!r}, expected host:port with a port of 1..65535, "
            "such as 127.0.0.1:9876"
        )
    return host, int(port)

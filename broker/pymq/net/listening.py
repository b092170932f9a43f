"""Taking a port to listen on, and saying why that is impossible."""

import errno
import socket

from pymq.errors import ConfigurationError
from pymq.protocol.addresses import join_address


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that has taken a port, and does not listen yet.

    Args:
        host: one of this machine's addresses, or its name.
        port: 0: any free one.

    Raises:
        ConfigurationError: the port is taken, or the address is not ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:  # Unicode: a name that cannot be looked up
        raise ConfigurationError(
            f"cannot listen on {join_address(host, port)}: {listen_error(error)}"
        ) from error
    return bound


def listen_error(error: OSError | UnicodeError) -> str:
    """Return why a port cannot be listened on, and what to do."""
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "the host cannot be resolved; choose one of this machine's addresses"
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop the other program or choose another port"
    if error.errno == errno.EACCES:
        return "no permission; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "the address is not one of this machine"
    return str(error)

"""Taking a port to listen on, and saying why that is impossible."""

import errno
import socket
from typing import Any

from pymq.errors import ConfigurationError
from pymq.protocol.addresses import join_address

#: Connections that may wait to be accepted.
BACKLOG_COUNT = 1024


def bind(host: str, port: int, *, is_wanted: bool = True) -> socket.socket:
    """Return a socket that has taken a port, and does not listen yet.

    Args:
        host: one of this machine's addresses, or its name.
        port: 0: any free one.
        is_wanted: take it although connections on it are not quite over. False: another one does
            as well, so nobody is to lose it who may have taken it like that.

    Raises:
        ConfigurationError: the port is taken, or the address is not ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            _take(bound, address, is_wanted=is_wanted)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:  # Unicode: a name that cannot be looked up
        raise ConfigurationError(
            f"cannot listen on {join_address(host, port)}: {listen_error(error)}"
        ) from error
    return bound


def _take(bound: socket.socket, address: tuple[Any, ...], *, is_wanted: bool) -> None:
    """Bind, so that nobody else can take the port before we listen.

    Linux gives a port to several sockets that may reuse addresses, as long as none of them listens;
    all but the first to listen fail then. So reuse is asked for only when it is needed: for a port
    on which connections of a server that has ended are not quite over.
    """
    try:
        bound.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not is_wanted:
            raise
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)


def listen(bound: socket.socket, backlog_count: int = BACKLOG_COUNT) -> None:
    """Listen on a port that ``bind`` took.

    Args:
        bound: that.
        backlog_count: connections that may wait to be accepted.

    Raises:
        OSError: see ``listen_error``.
    """
    bound.listen(backlog_count)
    # Its connections inherit that: the next server on this port can take it.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


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

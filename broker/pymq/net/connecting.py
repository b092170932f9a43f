"""Connecting to several peers at the same time, with neither a thread nor an event loop."""

import errno
import os
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pymq.net.polling import WRITE, new_poll

#: Host (name or address) and port.
Peer = tuple[str, int]

#: What ``connect_ex`` returns while it is under way; Windows says that it would block.
_UNDER_WAY: Final = {errno.EINPROGRESS, getattr(errno, "WSAEWOULDBLOCK", errno.EINPROGRESS)}


def connect_sockets(
    peers: Iterable[Peer], *, timeout_s: float
) -> dict[Peer, socket.socket | OSError | UnicodeError]:
    """Connect to peers, all at the same time, so that one that is away delays no other.

    Only looking up names, which the system does not do in the background, is done one by one.

    Args:
        peers: whom to connect to. The addresses of a name are tried one after the other.
        timeout_s: for each address.

    Returns:
        For each peer its socket, non-blocking, without Nagle's delay, which the caller owns; or
        why there is none.
    """
    found: dict[Peer, socket.socket | OSError | UnicodeError] = {}
    attempts: dict[int, _Attempt] = {}  # by file descriptor
    poll = new_poll()

    def begin(attempt: _Attempt) -> None:
        if attempt.begin():
            attempts[attempt.socket.fileno()] = attempt
            poll.register(attempt.socket, WRITE)
        else:
            found[attempt.peer] = attempt.error

    def end(number: int, error: OSError | None) -> None:
        attempt = attempts.pop(number)
        poll.unregister(number)
        if error is None:
            found[attempt.peer] = attempt.socket
            return
        attempt.error = error
        attempt.socket.close()
        begin(attempt)

    try:
        for peer in dict.fromkeys(peers):
            try:
                begin(_Attempt(peer, timeout_s))
            except (OSError, UnicodeError) as error:
                found[peer] = error
        while attempts:
            left_s = min(attempt.deadline_s for attempt in attempts.values()) - time.monotonic()
            for number, _ in poll.poll(max(0.0, left_s) * 1000):
                code = attempts[number].socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                end(number, _failure(code) if code else None)
            now_s = time.monotonic()
            for number in [n for n, one in attempts.items() if one.deadline_s <= now_s]:
                end(number, TimeoutError(f"no answer within {timeout_s:g} s"))
    except BaseException:  # Ctrl-C
        for one in (*found.values(), *(attempt.socket for attempt in attempts.values())):
            if isinstance(one, socket.socket):
                one.close()
        raise
    return found


class _Attempt:
    """Connecting to one peer.

    Attributes:
        socket: of the address that is tried now.
        deadline_s: when that address is given up, on the monotonic clock.
        error: why the address before it failed.
    """

    def __init__(self, peer: Peer, timeout_s: float) -> None:
        """Look up the peer's addresses.

        Raises:
            OSError, UnicodeError: it has none.
        """
        self.peer = peer
        self._timeout_s = timeout_s
        self._addresses: Iterator[Any] = iter(socket.getaddrinfo(*peer, type=socket.SOCK_STREAM))
        self.error = OSError("no address")
        self.socket: socket.socket
        self.deadline_s = 0.0

    def begin(self) -> bool:
        """Try the next address; ``False`` when there is none left."""
        for family, kind, protocol, _, address in self._addresses:
            try:
                tried = socket.socket(family, kind, protocol)
            except OSError as error:
                self.error = error
                continue
            try:
                tried.setblocking(False)
                # Before it is connected: macOS refuses options once the peer has closed.
                tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = tried.connect_ex(address)
            except OSError as error:
                tried.close()
                self.error = error
                continue
            except BaseException:
                tried.close()
                raise
            if code == 0 or code in _UNDER_WAY:
                self.socket = tried
                self.deadline_s = time.monotonic() + self._timeout_s
                return True
            tried.close()
            self.error = _failure(code)
        return False


def _failure(code: int) -> OSError:
    """Return the error of a code. Windows has texts of its own for those of sockets."""
    texts: dict[int, str] = getattr(socket, "errorTab", {})
    return OSError(code, texts.get(code) or os.strerror(code))

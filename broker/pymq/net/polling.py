"""Waiting for sockets by ``poll``, or by ``select`` where a system or a patched Python lacks that.

Windows has no ``poll``; eventlet takes it away. Not ``selectors`` everywhere: a wait takes 1 us by
``poll`` and twice that by way of a selector, and it is done for every answer.
"""

import select
import selectors
import socket
from typing import Final, Protocol

READ: Final[int] = getattr(select, "POLLIN", 1)
WRITE: Final[int] = getattr(select, "POLLOUT", 4)


class Poll(Protocol):
    """What is used of ``select.poll``."""

    def register(self, connection: socket.socket, events: int, /) -> object:
        """Wait for ``READ`` or ``WRITE`` from now on."""
        ...

    def unregister(self, connection: int, /) -> object:
        """Forget a socket, which may be closed by now, by its number."""
        ...

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """Return the numbers of sockets for which the wait is over, and something about each."""
        ...


def new_poll() -> Poll:
    """Return one without sockets."""
    return select.poll() if hasattr(select, "poll") else _Selected()  # asked now: it may be patched


class _Selected:
    """The same by ``select``, which has on Windows a way of its own to report failures."""

    def __init__(self) -> None:
        self._selector = selectors.SelectSelector()

    def register(self, connection: socket.socket, events: int, /) -> object:
        wanted = selectors.EVENT_READ if events == READ else selectors.EVENT_WRITE
        return self._selector.register(connection, wanted)

    def unregister(self, connection: int, /) -> object:
        return self._selector.unregister(connection)

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        return [(key.fd, events) for key, events in self._selector.select(timeout_ms / 1000)]

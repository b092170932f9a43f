"""Has the requests to a server wait, as if it was far away or busy."""

import asyncio
from collections import deque
from collections.abc import Iterable

from pymq.net.server import Server, ServerConnection
from pymq.protocol.framing import Incoming


class Latency:
    """How long requests wait before they are handled; for servers of one event loop.

    Requests stay in order. What waits when its connection ends is lost, as in a network.
    """

    def __init__(self) -> None:
        #: Cause -> how long; the last one counts.
        self._delays: dict[object, float] = {}
        self._listeners: list[_Listener] = []

    def attach(self, servers: Iterable[Server]) -> None:
        """Have the requests to these servers wait, and to no others any more."""
        self._listeners = [_Listener(server) for server in servers]
        self._change()

    def begin(self, cause: object, delay_s: float) -> None:
        """Have requests wait so long, whatever they waited before."""
        self._delays[cause] = delay_s
        self._change()

    def end(self, cause: object) -> None:
        """Have them wait as what began last, and lasts, says; idempotent."""
        if self._delays.pop(cause, None) is not None:
            self._change()

    def _change(self) -> None:
        delay_s = next(reversed(self._delays.values()), 0.0)
        for listener in self._listeners:
            listener.change(delay_s)


class _Listener:
    """The requests to one server."""

    def __init__(self, server: Server) -> None:
        self._handle = server.on_commands
        self._delay_s = 0.0
        self._waiting: deque[tuple[ServerConnection, list[Incoming]]] = deque()
        self._timers: deque[asyncio.TimerHandle] = deque()
        server.on_commands = self._take

    def change(self, delay_s: float) -> None:
        """Change it; what waits is handled now."""
        if delay_s == self._delay_s:
            return
        self._delay_s = delay_s
        while self._waiting:
            self._timers[0].cancel()
            self._pass_on()

    def _take(self, connection: ServerConnection, commands: list[Incoming]) -> None:
        if not self._delay_s:
            self._handle(connection, commands)
            return
        self._waiting.append((connection, commands))
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(self._delay_s, self._pass_on))

    def _pass_on(self) -> None:
        self._timers.popleft()
        connection, commands = self._waiting.popleft()
        if connection.is_open:
            self._handle(connection, commands)

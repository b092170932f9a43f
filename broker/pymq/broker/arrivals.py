"""Tells listeners which new messages have become visible.

Listeners run one after another, once the acknowledgements of these messages have left: an error in
one of them delays neither producers nor the other listeners.

What became visible before a start is not announced again: a feature that needs every message keeps
its place in a table of its own (``state_saving``), and reads from there first.

Source: RocketMQ MessageArrivingListener, ReputMessageService.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from pymq.store import Arrival
from pymq.store.dispatch import Dispatch

_log = logging.getLogger(__name__)

#: Gets what has become visible since its last call, in log order.
Listener: TypeAlias = Callable[[list[Arrival]], None]


class Arrivals:
    """Hands arrivals of one store to listeners.

    Args:
        dispatch: makes messages of the store visible.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._listeners: list[Listener] = []
        self._pending: list[Arrival] = []

    def start(self) -> None:
        """Begin to listen to the store."""
        self._dispatch.listener = self._arrived

    async def close(self) -> None:
        """Stop listening: while it closes, in a thread, the store makes the rest visible."""
        self._dispatch.listener = None

    def subscribe(self, listener: Listener) -> None:
        """Call a listener with all arrivals from now on."""
        self._listeners.append(listener)

    def _arrived(self, arrivals: list[Arrival]) -> None:
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._wait_for_acknowledgements)
        self._pending += arrivals

    def _wait_for_acknowledgements(self) -> None:
        # Those are written by callbacks that this turn of the loop has scheduled already.
        asyncio.get_running_loop().call_soon(self.deliver)

    def deliver(self) -> int:
        """Hand out what has arrived; return the number of arrivals."""
        arrivals, self._pending = self._pending, []
        for listener in self._listeners:
            try:
                listener(arrivals)
            except Exception:
                _log.exception("%r failed to handle %d arrivals", listener, len(arrivals))
        return len(arrivals)

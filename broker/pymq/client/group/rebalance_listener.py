"""What a program can have called when a consumer gets queues, gives them up, or loses them."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable

from pymq.errors import ConfigurationError
from pymq.net.tasks import calling, is_cancelled
from pymq.net.threads import in_thread
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import is_retry_topic

_log = logging.getLogger(__name__)

#: The group stands still for as long as a listener takes; one that takes longer is named.
SLOW_S = 10.0


class RebalanceListener:
    """Base of listeners; override what you need, as ``async def`` or plain.

    Plain methods are called in the event loop, so they must not block; ``pymq.blocking`` calls
    them in a thread. The consumer waits for each call, except when the call closes it. What one
    raises is logged. Queues of the group's retry topic are not mentioned.

    Source: RocketMQ MessageQueueListener, which is told of all queues at each change instead.
    """

    def assigned(self, queues: list[MessageQueue]) -> object:
        """These queues are ours from now on; called before their first message is pulled."""

    def revoked(self, queues: list[MessageQueue]) -> object:
        """These queues are given up, or the consumer closes; called before they are committed.

        Handlers may still be at work on their messages; with ``orderly`` none is.
        """

    def lost(self, queues: list[MessageQueue]) -> object:
        """These queues are not ours any more, and cannot be committed.

        Their broker left the route, or could not say where to begin; with ``orderly`` also: another
        member has their lock.
        """


class InThreads(RebalanceListener):
    """A listener whose plain methods are called in a thread, so that they may block."""

    def __init__(self, listener: RebalanceListener) -> None:
        check_listener(listener)
        self._listener = listener

    async def assigned(self, queues: list[MessageQueue]) -> None:
        await self._call(self._listener.assigned, queues)

    async def revoked(self, queues: list[MessageQueue]) -> None:
        await self._call(self._listener.revoked, queues)

    async def lost(self, queues: list[MessageQueue]) -> None:
        await self._call(self._listener.lost, queues)

    async def _call(
        self, method: Callable[[list[MessageQueue]], object], queues: list[MessageQueue]
    ) -> None:
        result = await in_thread("pymq listener", method, queues)
        if isinstance(result, Awaitable):
            await result


class ListenerCalls:
    """Calls a listener, and survives what it does.

    Args:
        group: for log messages.
        listener: of the program; ``None``: it has none.
    """

    def __init__(self, group: str, listener: RebalanceListener | None) -> None:
        self._group = group
        self._listener = listener

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Tell that queues are ours."""
        if self._listener is not None:
            await self._call(self._listener.assigned, queues)

    async def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Tell that queues are given up."""
        if self._listener is not None:
            await self._call(self._listener.revoked, queues)

    async def lost(self, queues: Iterable[MessageQueue]) -> None:
        """Tell that queues are lost."""
        if self._listener is not None:
            await self._call(self._listener.lost, queues)

    async def _call(
        self, method: Callable[[list[MessageQueue]], object], queues: Iterable[MessageQueue]
    ) -> None:
        visible = sorted(queue for queue in queues if not is_retry_topic(queue.topic))
        if not visible:
            return
        name = getattr(method, "__qualname__", repr(method))
        say = functools.partial(
            _log.warning,
            "group %r: %s has taken more than %g s for %d queues, and the consumer waits for it: "
            "no queue is taken or given up meanwhile",
            self._group,
            name,
            SLOW_S,
            len(visible),
        )
        slow = asyncio.get_running_loop().call_later(SLOW_S, say)
        try:
            with calling():  # It may close the consumer, which waits for this task otherwise.
                result = method(visible)
                if isinstance(result, Awaitable):
                    await result
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            _log.exception("group %r: %s failed for %d queues", self._group, name, len(visible))
        finally:
            slow.cancel()


def check_listener(listener: object) -> None:
    """Accept a listener.

    Raises:
        ConfigurationError: it is not a ``RebalanceListener``.
    """
    if not isinstance(listener, RebalanceListener):
        raise ConfigurationError(
            f"rebalance_listener={listener!r:.80}: expected an instance of a class that inherits "
            "from pymq.RebalanceListener"
        )

"""The workers of one ``Consumer.run``: they take messages and call the handler."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from pymq.client.handler import check_result
from pymq.client.inbox import Delivery, Inbox
from pymq.net.said_once import SaidOnce

_log = logging.getLogger(__name__)

#: Of a message or, with a batch size, of a list of messages; may return something to await.
Handler = Callable[[Any], object]


class WorkerPool:
    """Several workers with one handler.

    Args:
        inbox: where messages come from.
        handler: called with a message or, with ``batch_size``, a list of messages.
        concurrency: number of workers.
        batch_size: most messages of one call.
        handler_failed: called with messages for which the handler failed, and what it raised.
        spawn: starts a task that ends with the consumer at the latest.
    """

    def __init__(
        self,
        inbox: Inbox,
        handler: Handler,
        concurrency: int,
        batch_size: int | None,
        handler_failed: Callable[[Sequence[Delivery], BaseException], Awaitable[None]],
        spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._inbox = inbox
        self._handler = handler
        self._batch_size = batch_size
        self._handler_failed = handler_failed
        self._said = SaidOnce(_log)
        self._is_stopping = False
        #: What ended a worker, other than ``stop``, ``close`` or Ctrl-C.
        self._failure: BaseException | None = None
        self._idle: set[asyncio.Task[None]] = set()
        self._workers = [spawn(f"handler {n}", self._work()) for n in range(concurrency)]

    @property
    def is_running(self) -> bool:
        """Is a worker still there?"""
        return not all(worker.done() for worker in self._workers)

    async def wait_end(self) -> None:
        """Wait until all workers have ended, or something ended one of them: that is raised."""
        pending = set(self._workers)
        while pending and self._failure is None:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no more messages; handlers at work go on."""
        self._is_stopping = True
        for worker in self._idle:
            worker.cancel()

    async def close(self, timeout_s: float) -> None:
        """Take no more messages and wait for the handlers at work; then cancel them."""
        self.stop()
        running = [worker for worker in self._workers if not worker.done()]
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=timeout_s)
        for worker in late:
            worker.cancel()
        if late:
            _log.warning(
                "%d handlers were not done within %g s (close_timeout_s) and were cancelled; "
                "their messages will be delivered again",
                len(late),
                timeout_s,
            )
            await asyncio.wait(late)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._is_stopping:
            self._idle.add(task)
            try:
                delivery = await self._inbox.take_in_turn()
            finally:
                self._idle.discard(task)
            if delivery is None:
                return
            deliveries = self._fill(delivery)
            try:
                await self._handle(deliveries)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                # Whether they were handled is not known. ``run`` raises it, so no log is needed.
                for unknown in reversed(deliveries):
                    self._inbox.put_back(unknown)
                self._failure = self._failure or error
                self.stop()

    def _fill(self, delivery: Delivery) -> list[Delivery]:
        """Return the delivery and, for a handler of several, what else is there."""
        deliveries = [delivery]
        while len(deliveries) < (self._batch_size or 1):
            another = self._inbox.take_with(delivery)
            if another is None:
                break
            deliveries.append(another)
        return deliveries

    async def _handle(self, deliveries: list[Delivery]) -> None:
        messages = [delivery.message for delivery in deliveries]
        argument = messages[0] if self._batch_size is None else messages
        try:
            result = self._handler(argument)
            if isinstance(result, Awaitable):
                result = await result
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            await self._handler_failed(deliveries, error)
        else:
            check_result(self._handler, result, self._said)
            for delivery in deliveries:
                self._inbox.acknowledge(delivery)


def _is_cancelled() -> bool:
    """Was the current task cancelled from outside, rather than the handler from within?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

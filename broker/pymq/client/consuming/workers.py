"""The workers of one ``Consumer.run``: they take messages and call the handler.

Coroutine functions are called in tasks of the event loop (``WorkerPool``), plain functions in
threads (``thread_workers``), so that one that blocks keeps nothing else waiting.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from pymq.client.consuming.consume_hooks import ConsumeObserver, Consumption
from pymq.client.consuming.handler import check_result, name_of
from pymq.client.consuming.outcomes import Outcomes
from pymq.client.group.inbox import Delivery, Inbox
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import begin_call, is_cancelled, those_who_wait
from pymq.protocol.message import ReceivedMessage

_log = logging.getLogger(__name__)

#: How long a close waits for the handler that has begun it in a task of its own: it may be waiting
#: for that task, or have more to do.
CALLER_S = 1.0

#: Of a message or, with a batch size, of a list of messages; may return something to await.
Handler = Callable[[Any], object]


class Calls:
    """What workers call for messages, and what is to be known of it.

    Args:
        handler: called with a message or, with ``batch_size``, a list of messages.
        batch_size: most messages of one call.
        outcomes: gets what became of messages.
        observer: calls the hooks, if there are any.
    """

    def __init__(
        self,
        handler: Handler,
        batch_size: int | None,
        outcomes: Outcomes,
        observer: ConsumeObserver | None,
    ) -> None:
        self.handler = handler
        self.name = name_of(handler)
        self.outcomes = outcomes
        self.count_max = batch_size or 1
        self._takes_lists = batch_size is not None
        self._observer = observer
        self._said = SaidOnce(_log)

    def begin(self, deliveries: list[Delivery]) -> Consumption | None:
        """Return what hooks see of a call; ``None``: there are no hooks."""
        return None if self._observer is None else self._observer.begin(deliveries)

    def call(self, deliveries: list[Delivery], seen: Consumption | None) -> object:
        """Call hooks and handler. Raises what they raise."""
        if seen is not None:
            seen.before()
        if self._takes_lists:
            return self.handler([delivery.message for delivery in deliveries])
        return self.handler(deliveries[0].message)

    def call_alone(self, message: ReceivedMessage) -> object:
        """Call the handler with a message that no queue has delivered. Raises what it raises."""
        return self.handler([message] if self._takes_lists else message)

    def check_result(self, result: object) -> None:
        """Accept what the handler returned. Raises what ``handler.check_result`` does."""
        if result is not None:
            check_result(self.handler, result, self._said)


class Workers:
    """Several workers with one handler; what the two kinds share. For one event loop."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._is_stopping = False
        #: What ended a worker, other than ``stop`` or ``close``.
        self._failure: BaseException | None = None
        #: When a worker last began or ended a call; monotonic.
        self._active_s = time.monotonic()
        #: One for each worker, done when that has ended.
        self._workers: Sequence[asyncio.Future[None]] = ()

    @property
    def is_running(self) -> bool:
        """Is a worker still there?"""
        return not all(worker.done() for worker in self._workers)

    def _are_idle(self) -> bool:
        """Do all of them wait for messages?"""
        raise NotImplementedError

    def stop(self) -> None:
        """Take no more messages; handlers at work go on."""
        raise NotImplementedError

    async def wait_end(self, idle_s: float | None = None) -> None:
        """Wait until all workers have ended, or something ended one of them: that is raised.

        Args:
            idle_s: stop when no message has come for so long; ``None``: never.
        """
        pending = set(self._workers)
        wait_s = idle_s
        while pending and self._failure is None:
            _, pending = await asyncio.wait(
                pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if idle_s is not None:
                wait_s = idle_s
                if self._are_idle():
                    wait_s = self._active_s + idle_s - time.monotonic()
                    if wait_s <= 0:
                        self.stop()
                        wait_s = None
        if self._failure is not None:
            raise self._failure

    def cancel_left(self) -> None:
        """When all else is closed, cancel who has begun that and goes on: no thread can be."""

    async def _wait_ended(
        self, timeout_s: float, but: Collection[asyncio.Task[Any] | None] = ()
    ) -> set[asyncio.Future[None]]:
        """Wait for the handlers at work, but some; return those of workers that are late."""
        running = [one for one in self._workers if not one.done() and one not in but]
        if not running:
            return set()
        _, late = await asyncio.wait(running, timeout=timeout_s)
        return late


class WorkerPool(Workers):
    """Workers in tasks, for coroutine functions.

    Args:
        inbox: where messages come from.
        calls: what to call.
        concurrency: number of workers.
        spawn: starts a task that ends with the consumer at the latest.
    """

    def __init__(
        self,
        inbox: Inbox,
        calls: Calls,
        concurrency: int,
        spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        super().__init__(calls)
        self._inbox = inbox
        self._idle: set[asyncio.Task[None]] = set()
        self._tasks = [spawn(f"handler {n}", self._work()) for n in range(concurrency)]
        self._workers = self._tasks

    def _are_idle(self) -> bool:
        return len(self._idle) == sum(not worker.done() for worker in self._workers)

    def stop(self) -> None:
        """Take no more messages; handlers at work go on."""
        self._is_stopping = True
        for worker in self._idle:
            worker.cancel()

    async def close(self, timeout_s: float, closer: asyncio.Task[Any] | None) -> None:
        """Take no more messages and wait for the handlers at work; then cancel them.

        One that has begun this would wait for itself. In a task of its own it is waited for, but
        not long, and not cancelled: with it the task would be, for which it may be waiting.

        Args:
            timeout_s: how long.
            closer: the task that closes.
        """
        self.stop()
        late = await self._wait_ended(timeout_s, {closer, *those_who_wait()})
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
        await self._wait_ended(min(timeout_s, CALLER_S), {closer})

    def cancel_left(self) -> None:
        """When all else is closed, cancel who has begun that and goes on.

        Not at once: who waited for it is about to hear of its end.
        """
        loop, closer = asyncio.get_running_loop(), asyncio.current_task()
        for worker in self._tasks:
            if worker is not closer and not worker.done():
                loop.call_later(CALLER_S, worker.cancel)

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
            self._active_s = time.monotonic()
            try:
                await self._handle(deliveries, task)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                # Whether they were handled is not known. ``run`` raises it, so no log is needed.
                for unknown in reversed(deliveries):
                    self._inbox.put_back(unknown)
                self._failure = self._failure or error
                self.stop()
            self._active_s = time.monotonic()

    def _fill(self, delivery: Delivery) -> list[Delivery]:
        """Return the delivery and, for a handler of several, what else is there."""
        delivery.holder = self._calls.name
        deliveries = [delivery]
        while len(deliveries) < self._calls.count_max:
            another = self._inbox.take_with(delivery)
            if another is None:
                break
            another.holder = self._calls.name
            deliveries.append(another)
        return deliveries

    async def _handle(self, deliveries: list[Delivery], task: asyncio.Task[Any]) -> None:
        calls = self._calls
        seen = calls.begin(deliveries)
        try:
            callers = begin_call(task)
            try:
                result = calls.call(deliveries, seen)
                if isinstance(result, Awaitable):
                    result = await result
            finally:
                callers.clear()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            if seen is not None:
                seen.after(error)
            await calls.outcomes.raised(deliveries, error)
        else:
            calls.check_result(result)
            if seen is not None:
                seen.after(None)
            calls.outcomes.returned(deliveries)

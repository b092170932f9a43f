"""Workers in threads, for plain functions: one that blocks keeps nothing but itself waiting."""

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pymq.client.consuming.thread_inbox import Held, ThreadInbox
from pymq.client.consuming.workers import Calls, Workers
from pymq.client.group.inbox import Delivery
from pymq.errors import ConfigurationError

_log = logging.getLogger(__name__)

T = TypeVar("T")


class ThreadWorkers(Workers):
    """Workers in threads of their own.

    The threads do not keep the process alive: a handler that hangs is left behind at its end, and
    its message is delivered again.

    Args:
        inbox: where messages come from.
        calls: what to call.
        concurrency: number of threads.
        group: its name, for names of threads.

    Raises:
        RuntimeError: the system allows no more threads.
    """

    def __init__(
        self,
        inbox: ThreadInbox,
        calls: Calls,
        concurrency: int,
        group: str,
    ) -> None:
        super().__init__(calls)
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        #: Threads that wait for messages, each with its own.
        self._waiting: set[concurrent.futures.Future[bool]] = set()
        self._workers = [self._loop.create_future() for _ in range(concurrency)]
        try:
            for number, ended in enumerate(self._workers):
                threading.Thread(
                    target=contextvars.copy_context().run,
                    args=(self._work, ended),
                    name=f"pymq {group} {number}",
                    daemon=True,
                ).start()
        except BaseException:
            self.stop()  # those that were started, of which nobody would know
            raise

    def _are_idle(self) -> bool:
        return len(self._waiting) == sum(not worker.done() for worker in self._workers)

    def stop(self) -> None:
        """Take no more messages; handlers at work go on."""
        self._is_stopping = True
        for waiting in list(self._waiting):
            waiting.cancel()
        self._inbox.put_back([])  # What is ready may have been meant for these threads.

    async def close(self, timeout_s: float, _: asyncio.Task[Any] | None = None) -> None:
        """Take no more messages and wait for the handlers at work, which nobody can cancel."""
        self.stop()
        late = await self._wait_ended(timeout_s)
        if late:
            _log.warning(
                "%d handlers were not done within %g s (close_timeout_s); threads cannot be "
                "cancelled, so they go on, and their messages will be delivered again; give %s a "
                "time limit",
                len(late),
                timeout_s,
                self._calls.name,
            )
        for ended in late:
            _end(ended)  # or ``run`` would wait for them

    # --- in threads

    def _work(self, ended: asyncio.Future[None]) -> None:
        held = self._inbox.held
        try:
            while taken := self._take(held):
                self._active_s = time.monotonic()
                self._handle(taken, held)
                self._active_s = time.monotonic()
        except (concurrent.futures.CancelledError, asyncio.CancelledError):
            pass  # It was stopped, or the consumer was closed.
        except RuntimeError:
            if not self._loop.is_closed():
                raise
        finally:
            self._soon(_end, ended)

    def _take(self, held: Held) -> list[Delivery]:
        """Wait for messages; none: there will be no more."""
        taken: list[Delivery] = []
        while not taken and not self._is_stopping:
            taken = self._inbox.take_for_worker(held, self._calls.count_max)
            if not taken:
                waiting = self._begin(self._fetch())
                self._waiting.add(waiting)
                try:
                    if self._is_stopping:
                        waiting.cancel()
                    if not waiting.result():
                        break
                finally:
                    self._waiting.discard(waiting)
        for delivery in taken:
            delivery.holder = self._calls.name
        return taken

    def _handle(self, deliveries: list[Delivery], held: Held) -> None:
        calls = self._calls
        seen = calls.begin(deliveries)
        try:
            result = calls.call(deliveries, seen)
            if isinstance(result, Awaitable):
                result = self._begin(_wait(result)).result()
        except (Exception, asyncio.CancelledError) as error:
            held.release()
            if seen is not None:
                seen.after(error)
            self._begin(calls.outcomes.raised(deliveries, error)).result()
        except BaseException as error:
            self._fail(deliveries, held, error)
        else:
            try:
                calls.check_result(result)
            except ConfigurationError as error:
                self._fail(deliveries, held, error)
            else:
                if seen is not None:
                    seen.after(None)
                self._inbox.acknowledge(held)

    def _fail(self, deliveries: list[Delivery], held: Held, error: BaseException) -> None:
        """Whether they were handled is not known. ``run`` raises it, so no log is needed."""
        held.release()
        self._is_stopping = True
        self._soon(self._failed, deliveries, error)

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise

    def _soon(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            _log.debug("a handler's thread ends after its event loop")

    # --- in the event loop

    async def _fetch(self) -> bool:
        found = await self._inbox.fetch(None)
        if self._is_stopping:
            self._inbox.put_back([])  # Its thread does not wait for the answer any more.
        return found

    def _failed(self, deliveries: list[Delivery], error: BaseException) -> None:
        self._inbox.put_back(deliveries)
        self._failure = self._failure or error
        self.stop()


async def _wait(work: Awaitable[T]) -> T:
    return await work


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)

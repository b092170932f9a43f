"""An event loop in a thread of its own."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from pymq.client.cluster.home import Process
from pymq.client.threaded.calls import Call, CallFuture
from pymq.errors import ClientClosed, ConfigurationError

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: What goes on in this context, in whatever thread, was begun in this one's loop.
_within: ContextVar["LoopThread | None"] = ContextVar("_within", default=None)


class LoopThread:
    """An event loop in a thread of its own.

    Args:
        name: of the thread.
        on_end: called in it when nothing runs there any more, however it ends, before it does.

    Raises:
        ConfigurationError: it would be a green one, in a thread that has a loop already.
    """

    def __init__(self, name: str, on_end: Callable[[], object] | None = None) -> None:
        #: A child made by ``fork`` has a copy of all this, but not the thread.
        self.process = Process()
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        #: What has ended it, other than ``close``.
        self.failure: BaseException | None = None
        #: Who closes the client in it, and then the thread.
        self.closer: threading.Thread | None = None
        # What began before the end is cancelled. Reentrant: close() may come from a signal.
        self._lock = threading.RLock()
        self._is_green = False
        self._on_end = on_end
        begun = threading.Lock()  # no event: see ``futures``
        begun.acquire()
        self._thread = threading.Thread(target=self._run, args=(begun,), name=name, daemon=True)
        self._thread.start()
        try:
            begun.acquire()
        except BaseException:  # of a signal: nobody would know of this thread
            self.close()
            raise
        if self._is_green:
            self._loop.close()
            raise ConfigurationError(
                f"{name}: threads are green here (gevent or eventlet has patched them), and those "
                "of one thread of the system can have only one event loop, which another client "
                "or the program has: use Celery's pool prefork or threads, gunicorn's worker "
                "gthread or sync, or asyncio"
            )

    def _run(self, begun: threading.Lock) -> None:
        self._is_green = _has_loop()
        begun.release()
        if self._is_green:
            return
        asyncio.set_event_loop(self._loop)
        with contextlib.closing(self._loop):
            try:
                self._loop.run_forever()
            except BaseException as error:  # sys.exit(), of which nobody hears in a thread
                self._fail(error)
            self._end_tasks()
            self._end_others()

    def _fail(self, error: BaseException) -> None:
        """Something that the program has called here ended the loop."""
        self.failure, self._is_closed = error, True
        _log.critical(
            "%s: %r was raised in its thread, by a listener, a hook or the callback of a future, "
            "and has ended the client: what it has not sent or committed stays so",
            *(self._thread.name, error),
            exc_info=error,
        )
        self._end_tasks()  # before the lock: a signal's handler may wait for them in its holder
        with self._lock:
            pass  # Who was about to begin something has begun it.

    def _end_tasks(self) -> None:
        """Cancel what is left, for which other threads wait."""
        while True:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            # What the program has called at their end may raise it again.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_until_complete(asyncio.wait(left) if left else asyncio.sleep(0))
                if not asyncio.all_tasks(self._loop):
                    return

    def _end_others(self) -> None:
        """Let others end what waits for this thread and is not a task."""
        while self._on_end is not None:
            try:
                self._on_end()
            except Exception:
                _log.exception("%s: its end failed", self._thread.name)
            except BaseException as error:  # What the program has called may raise it again.
                _log.debug("%s: %r was raised at its end", self._thread.name, error)
                continue
            return

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result.

        Raises:
            ClientClosed: the thread has ended.
            ClientMisplaced: it belongs to the parent of this process.
        """
        begun = Call(work)
        try:
            self._begin(begun.begin, work)
            return begun.wait()
        except asyncio.CancelledError as error:
            raise ClientClosed("the client was closed meanwhile", sent=True) from error
        except BaseException:
            begun.leave()  # KeyboardInterrupt: nobody waits for it any more
            raise

    def begin(
        self, work: Coroutine[Any, Any, T], future: CallFuture[T] | None = None
    ) -> CallFuture[T]:
        """Start a coroutine in the loop; its future is cancelled when the thread ends before it.

        Args:
            work: the coroutine.
            future: of its outcome, if it was made before.

        Raises:
            ClientClosed: the thread has ended.
            ClientMisplaced: it belongs to the parent of this process.
        """
        if future is None:
            future = CallFuture()
        self._begin(functools.partial(future.begin, work), work)
        return future

    def _begin(self, begin: Callable[[], None], work: Coroutine[Any, Any, Any]) -> None:
        """Have the loop begin a coroutine. Raises what ``begin`` does."""
        if self.process.is_forked:
            work.close()
            self.process.check_process()
        with self._lock:
            try:
                self.check_caller()
            except ClientClosed:
                work.close()
                raise
            context = copy_context()
            context.run(_within.set, self)
            self._loop.call_soon_threadsafe(begin, context=context)

    def soon(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop.

        Raises:
            ClientClosed: the thread has ended.
            ClientMisplaced: it belongs to the parent of this process.
        """
        self.process.check_process()
        with self._lock:
            self.check_caller()
            self._loop.call_soon_threadsafe(function)

    def check_caller(self) -> None:
        """Accept a call that waits for the loop.

        Raises:
            ClientClosed: the thread has ended, or would wait for itself.
        """
        if self._is_closed:
            why = f"{self.failure!r} ended its thread" if self.failure else "use it inside `with`"
            raise ClientClosed(f"the client is closed; {why}")
        self.check_thread()

    @property
    def is_current(self) -> bool:
        """Is it the thread that asks: a hook, a callback of a future?"""
        return threading.current_thread() is self._thread

    def check_thread(self) -> None:
        """Accept a call that waits for the thread, from another one.

        Raises:
            ClientClosed: it would wait for itself.
        """
        if self.is_current:
            raise ClientClosed(
                "called in the client's own thread, which cannot wait for itself: by a hook or the"
                " callback of a future; do it in another thread"
            )

    def close(self) -> None:
        """Stop the loop and wait for the thread, from another one. Idempotent."""
        if self.process.is_forked:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def wait_ended(self, timeout_s: float) -> None:
        """Wait until another one has closed it, unless that waits for us: a handler, a listener."""
        is_closer = self.closer is threading.current_thread()
        is_waited_for = is_closer or self.is_current or _within.get() is self
        if self.process.is_forked or is_waited_for:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            closer = None if self.closer is None else self.closer.name
            _log.warning(
                "the client in thread %r is still closing after %g s, which thread %r began; it is "
                "not waited for any longer",
                self._thread.name,
                timeout_s,
                closer,
            )


def _has_loop() -> bool:
    """Does an event loop run in this thread of the system?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def soon(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in the loop."""
    return function(*arguments)

"""An event loop in a thread of its own, for clients of asyncio that are used without it."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Generic, Protocol, TypeVar

from pymq.client.cluster.home import Process
from pymq.client.cluster.pool import ClientPool
from pymq.errors import ClientClosed, ConfigurationError, PymqError

C = TypeVar("C", bound="Client")
T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How long a close may take at most, besides what its caller has chosen; who closes second does not
#: wait longer. What is waited for has limits, but for what a program does in it: a listener.
CLOSE_S = 300.0


#: What goes on in this context, in whatever thread, was begun in this one's loop.
_within: ContextVar["LoopThread | None"] = ContextVar("_within", default=None)


class LoopThread:
    """An event loop in a thread of its own.

    Raises:
        ConfigurationError: it would be a green one, in a thread that has a loop already.
    """

    def __init__(self, name: str) -> None:
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
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), name=name, daemon=True)
        self._thread.start()
        begun.wait()
        if self._is_green:
            self._loop.close()
            raise ConfigurationError(
                f"{name}: threads are green here (gevent or eventlet has patched them), and those "
                "of one thread of the system can have only one event loop, which another client "
                "or the program has: use Celery's pool prefork or threads, gunicorn's worker "
                "gthread or sync, or asyncio"
            )

    def _run(self, begun: threading.Event) -> None:
        self._is_green = _has_loop()
        begun.set()
        if self._is_green:
            return
        asyncio.set_event_loop(self._loop)
        with contextlib.closing(self._loop):
            try:
                self._loop.run_forever()
            except BaseException as error:  # sys.exit(), of which nobody hears in a thread
                self._fail(error)
            self._end_tasks()

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

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result.

        Raises:
            ClientClosed: the thread has ended.
            ClientMisplaced: it belongs to the parent of this process.
        """
        future = self.begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise ClientClosed("the client was closed meanwhile", sent=True) from error
        except BaseException:
            future.cancel()  # KeyboardInterrupt: nobody waits for it any more
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine in the loop; its future is cancelled when the thread ends before it.

        Raises:
            ClientClosed: the thread has ended.
            ClientMisplaced: it belongs to the parent of this process.
        """
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
            return context.run(asyncio.run_coroutine_threadsafe, work, self._loop)

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


class Client(Protocol):
    """What is common to the clients of asyncio."""

    _pool: ClientPool

    async def start(self) -> Any: ...


class Threaded(Generic[C]):
    """A client of asyncio whose loop runs in a thread while it is open.

    One that is still open when the process ends is closed then: the thread would just stop, and
    what it had not sent or committed would be lost without a word.

    In a child made by ``fork`` one that was open makes itself another client when it is first used,
    with connections, ids and a thread of its own. What the parent has begun stays with the parent.

    Args:
        make: returns a client of asyncio, in each process another one.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._made = make()
        self._thread: LoopThread | None = None
        #: The same, from when it is closed.
        self._ending: LoopThread | None = None
        #: The thread of a client that starts, which may have to wait for its cluster.
        self._begun: LoopThread | None = None
        self._name = ""
        self._forget_end: Callable[[], object] = _nothing
        #: What else makes a client, by what it is about: subscriptions.
        self._settings: dict[object, Callable[[C], object]] = {}
        self._starting = threading.Lock()
        self._process = Process(self._forked)

    def _forked(self) -> None:
        self._starting = threading.Lock()  # one that a thread of the parent holds stays locked

    @property
    def _client(self) -> C:
        """The client of this process."""
        if self._process.is_forked:
            self._renew()
        return self._made

    @property
    def _is_open(self) -> bool:
        return self._thread is not None

    def close(self) -> None:
        """Close it, with a limit in time; idempotent."""
        raise NotImplementedError

    def _start(self, start: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        with self._starting:
            if self._thread is not None:
                return
            self._name = name
            self._run(self._made, start)

    def _run(self, client: C, start: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begun = thread = LoopThread(self._name)
        try:
            thread.call(start())
        except BaseException:
            self._begun = None
            thread.close()
            raise
        self._begun = None
        self._made, self._thread = client, thread
        self._forget_end = _at_end(self.close)

    def _renew(self) -> None:
        """Take the place of the copy of the parent's client."""
        with self._starting:
            if not self._process.is_forked:
                return  # Another thread was quicker.
            if self._thread is not None or self._begun is not None:
                client = self._make()
                client._pool.is_renewed = True
                for setting in self._settings.values():
                    setting(client)
                # Kept: what it would do when it is collected concerns the parent's loop.
                _of_parents.append((self._made, self._thread, self._begun))
                self._begun = None
                self._forget_end()
                if self._thread is not None:
                    self._run(client, client.start)
                self._made = client
            self._process = Process(self._forked)
            self._renewed()

    def _renewed(self) -> None:
        """Make again what belongs to a process, before the client is used in this one."""

    def _stop(
        self, close: Callable[[C], Coroutine[Any, Any, Any]], timeout_s: float = 0.0
    ) -> None:
        """Close it; who comes second waits for that, ``CLOSE_S`` longer than ``timeout_s``."""
        for open_one in (self._begun, self._thread):
            if open_one is not None:
                open_one.check_thread()  # before anything ends: it stays open as it is
        if self._begun is not None:
            self._begun.close()  # whoever waits for the start hears that it is closed
        thread, forget_end = self._thread, self._forget_end
        if thread is None:
            if self._ending is not None:
                self._ending.wait_ended(CLOSE_S + timeout_s)
            return
        self._ending, self._thread = thread, None
        try:
            if not (thread.process.is_forked or thread.failure):
                thread.closer = threading.current_thread()
                thread.call(close(self._made))
        finally:
            thread.close()
            forget_end()  # not before: the end of the process waits for it, too

    def _set(self, about: object, setting: Callable[[C], object]) -> None:
        """Change what the client is told to do, also in children made by ``fork``."""
        self._in_loop(lambda: setting(self._made))
        self._settings[about] = setting

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._running(work).call(work)

    def _in_loop(self, function: Callable[[], T]) -> T:
        """Call a function in the loop; before that runs, and when it has ended, here."""
        if self._process.is_forked:
            self._renew()
        if self._thread is None:
            return function()
        return self._call(soon(function))

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return self._running(work).begin(work)

    def _running(self, work: Coroutine[Any, Any, Any]) -> LoopThread:
        try:
            return self._check_open()
        except PymqError:
            work.close()
            raise

    def _soon(self, function: Callable[[], object]) -> None:
        self._check_open().soon(function)

    def _check_caller(self) -> None:
        self._check_open().check_caller()

    def _check_open(self) -> LoopThread:
        if self._process.is_forked:
            self._renew()
        if self._thread is None:
            raise ClientClosed("the client is not open: use it inside `with`")
        return self._thread


#: Clients of the parent process and their threads, of which this one has copies.
_of_parents: list[object] = []


def _has_loop() -> bool:
    """Does an event loop run in this thread of the system?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    """There is nothing to forget."""


def _at_end(close: Callable[[], None]) -> Callable[[], object]:
    """Have something called when the process ends; return what revokes that."""
    atexit.register(close)
    # Children of multiprocessing, which has been imported there, end without atexit.
    util = sys.modules.get("multiprocessing.util")
    in_child = None if util is None else util.Finalize(None, close, exitpriority=0)

    def revoke() -> None:
        atexit.unregister(close)
        if in_child is not None:
            in_child.cancel()

    return revoke


async def soon(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in the loop."""
    return function(*arguments)

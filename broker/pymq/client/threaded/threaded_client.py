"""Clients of asyncio that are used without it: each has a thread with an event loop."""

import atexit
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from pymq.client.cluster.home import Process
from pymq.client.cluster.pool import ClientPool
from pymq.client.threaded.calls import CallFuture
from pymq.client.threaded.loop_thread import LoopThread, soon
from pymq.errors import ClientClosed, PymqError

C = TypeVar("C", bound="Client")
T = TypeVar("T")

#: How long a close may take at most, besides what its caller has chosen; who closes second does not
#: wait longer. What is waited for has limits, but for what a program does in it: a listener.
CLOSE_S = 300.0


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
        self._process = Process(self._forked)
        self._forked()

    def _forked(self) -> None:
        # Another one: what a thread of the parent holds stays locked. Reentrant, so that a signal's
        # handler hears that it has interrupted who holds it, and does not wait for itself.
        self._starting = threading.RLock()
        self._is_starting = False

    def _alone(self, begin: Callable[[], None]) -> None:
        """Begin what this process has one of, while no other thread does.

        Raises:
            ClientClosed: a signal's handler has interrupted the thread that does.
        """
        with self._starting:
            if self._is_starting:
                raise ClientClosed(
                    "the client is being started in this very thread, which a signal's handler has "
                    "interrupted and would wait for: have the handler set an event, or raise, and "
                    "use the client where the program goes on"
                )
            try:
                self._is_starting = True
                begin()
            finally:
                self._is_starting = False

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
        def begin() -> None:
            if self._thread is None:
                self._name = name
                self._run(self._made, start)

        self._alone(begin)

    def _run(self, client: C, start: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begun = thread = LoopThread(self._name, lambda: self._thread_ended(client))
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
        self._alone(self._renew_first)

    def _renew_first(self) -> None:
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
        self._renewed()
        self._process = Process(self._forked)  # last: threads look at it without the lock

    def _renewed(self) -> None:
        """Make again what belongs to a process, before the client is used in this one."""

    def _thread_ended(self, client: C) -> None:
        """End what waits for a client and is not a task: its thread ends."""

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

    def _begin(
        self, work: Coroutine[Any, Any, T], future: CallFuture[T] | None = None
    ) -> CallFuture[T]:
        return self._running(work).begin(work, future)

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

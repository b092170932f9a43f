"""Where a client was made: its process, its thread, its event loop.

A child made by ``fork`` has copies of its parent's sockets and of the counter of its message ids:
both processes would read each other's answers and give one id to two messages. In a second event
loop a client of asyncio would wait for ever, or fail because the first one is closed.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable

from pymq.errors import ClientMisplaced


class Process:
    """The process in which something was made. A child has a copy, which knows that it is one.

    Args:
        on_fork: a method that is called in each child, before anything else runs there. It must
            not wait for anybody: there are no other threads, and whatever they held stays locked.
    """

    __slots__ = ("__weakref__", "_on_fork", "is_forked", "pid")

    def __init__(self, on_fork: Callable[[], None] | None = None) -> None:
        self.pid = os.getpid()
        # Weak, so that its owner is not kept until the garbage collector comes.
        self._on_fork = None if on_fork is None else weakref.WeakMethod(on_fork)
        #: Is this the copy in a child? A flag: to ask the system costs more, and for each message.
        self.is_forked = False
        _processes.add(self)

    def forked(self) -> None:
        """Note that this is the copy in a child."""
        self.is_forked = True
        on_fork = None if self._on_fork is None else self._on_fork()
        if on_fork is not None:
            on_fork()

    def check_process(self) -> None:
        """Accept a call from the process itself.

        Raises:
            ClientMisplaced: it comes from a child.
        """
        if self.is_forked:
            raise ClientMisplaced(
                f"the client was started in process {self.pid} and cannot be used in its child "
                f"{os.getpid()}, with which it would share connections and message ids; make a "
                "client in each process, after the fork"
            )


# Weak, so that nothing is kept for the sake of a fork.
_processes: weakref.WeakSet[Process] = weakref.WeakSet()


def _mark_forked() -> None:
    for process in list(_processes):
        process.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_mark_forked)


class Home(Process):
    """The process, thread and event loop of a client of asyncio: it is of use nowhere else.

    Raises:
        RuntimeError: no event loop is running.
    """

    __slots__ = ("_thread", "loop")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def is_own_thread(self) -> bool:
        """Is this the thread of the client's event loop?"""
        return threading.get_ident() == self._thread

    def check(self) -> None:
        """Accept a call from the client's own event loop.

        Raises:
            ClientMisplaced: it comes from somewhere else.
        """
        if self.is_forked:
            self.check_process()
        # Two short calls: to ask for the running loop asks the system for the process, too.
        if threading.get_ident() != self._thread or not self.loop.is_running():
            ended = ", which has ended" if self.loop.is_closed() else ""
            raise ClientMisplaced(
                f"the client was started in another event loop{ended}; start and use it in the "
                "coroutines of one loop (one asyncio.run around both), or take its counterpart in "
                "pymq.blocking, which serves any thread"
            )

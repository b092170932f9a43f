"""Makes this Python lack what Windows' lacks, for good: for processes that import it first of all.

What the system itself does differently (files that are open cannot be removed, another event loop)
is not shown by this.
"""

import asyncio
import concurrent.futures
import errno
import importlib.abc
import logging.handlers
import multiprocessing.connection
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import Any

LOADED_BEFORE = (concurrent.futures, logging.handlers, multiprocessing.connection, subprocess)
#: Of sockets that work on it: connecting is under way, and an argument is wrong.
WSAEWOULDBLOCK, WSAEINVAL = 10035, 10022
MODULES = {"fcntl", "grp", "posix", "pwd", "readline", "resource", "termios", "uvloop"}
LACKS: dict[ModuleType, str] = {
    os: "fork register_at_fork getuid geteuid getgid sched_getaffinity O_DIRECTORY O_NOFOLLOW "
    "O_CLOEXEC O_NONBLOCK posix_fadvise posix_fallocate sendfile pread pwrite preadv pwritev "
    "fdatasync statvfs sysconf killpg setsid mkfifo WNOHANG",
    select: "poll epoll POLLIN POLLOUT",
    selectors: "PollSelector EpollSelector",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE SIGALRM",
    socket: "SO_REUSEPORT MSG_DONTWAIT MSG_NOSIGNAL TCP_USER_TIMEOUT SO_BUSY_POLL TCP_QUICKACK",
}


class Socket(socket.socket):
    """A socket of Windows."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("sendmsg", "recvmsg", "recvmsg_into"):
            raise AttributeError(f"'socket' object has no attribute {name!r}")
        return super().__getattribute__(name)

    def connect_ex(self, address: Any) -> int:
        code = super().connect_ex(address)
        return WSAEWOULDBLOCK if code == errno.EINPROGRESS else code


class Missing(importlib.abc.MetaPathFinder):
    """Finds no module of ``MODULES``."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def select_some(*arguments: Any, found: Any = select.select) -> Any:
    if not any(arguments[:3]):
        raise OSError(WSAEINVAL, "An invalid argument was supplied")
    return found(*arguments)


def no_signals(*_: Any) -> None:
    raise NotImplementedError


for module, names in LACKS.items():
    for one in names.split():
        if hasattr(module, one):  # newer versions of Linux have more
            delattr(module, one)
for one in MODULES:
    sys.modules.pop(one, None)
sys.meta_path.insert(0, Missing())
loops: Any = asyncio.SelectorEventLoop
loops.add_signal_handler = loops.remove_signal_handler = no_signals
selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc]
select.select = select_some
socket.socket = Socket  # type: ignore[misc]
socket.SocketType = Socket  # type: ignore[misc]
errno.WSAEWOULDBLOCK = WSAEWOULDBLOCK  # type: ignore[attr-defined]
tempfile.tempdir = tempfile.gettempdir()

"""One event loop that runs servers until a signal ends them."""

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)

#: A clean stop takes less than this; a signal after it ends the process at once.
STOP_S = 3.0
#: Allocations minus deallocations before the youngest generation is collected.
_GC_ALLOCATIONS = 50_000
#: Parameters of glibc's mallopt, and their values.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_MAPPED_BYTES_MIN = 32 << 20
#: Open files that are asked for where the hard limit is not granted: macOS has none, and grants
#: 10240 (OPEN_MAX) or more.
_FILE_COUNTS = (1 << 20, 1 << 18, 1 << 16, 1 << 14, 10_240, 4096, 1024)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``serve`` until it returns, or until a signal cancels it.

    SIGTERM, Ctrl-C and the end of the terminal cancel it once; further signals within ``STOP_S`` do
    not disturb it while it closes its servers, because shells and wrappers tend to send the same
    signal twice.

    Raises:
        PymqError: raised by ``serve``.
    """
    _calm_collector()
    _keep_memory()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_until_signal(serve))


def _calm_collector() -> None:
    """Let the garbage collector run rarely, and never on what was imported.

    A server makes a few objects per message and no cycles; with the default thresholds, looking for
    cycles took a fifth of the time of a batch of messages.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_ALLOCATIONS, 20, 50)


def _keep_memory() -> None:
    """Let glibc keep the memory of one large request for the next.

    By default it returns buffers of a MiB to the kernel and gets zeroed pages for the next ones,
    which takes a fifth of the time of a batch of messages. Other C libraries have no mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)


async def _until_signal(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    stopping_at: float | None = None

    def stop(number: signal.Signals) -> None:
        nonlocal stopping_at
        if stopping_at is None:
            stopping_at = loop.time()
            _log.info("%s: stopping", number.name)
            task.cancel()
        elif loop.time() - stopping_at > STOP_S:
            _log.error("%s again: ending at once; the next start recovers the store", number.name)
            os._exit(128 + number)

    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, stop, number)
    try:
        await serve()
    except asyncio.CancelledError:
        if stopping_at is None:
            raise


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def raise_file_limit() -> None:
    """Allow this process as many open files as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    cause: Exception | None = None
    for count in (hard, *(one for one in _FILE_COUNTS if one > soft)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        except (OSError, ValueError) as error:
            cause = error
        else:
            return
    _log.warning(
        "the limit of open files stays at %d: %s; connections are refused beyond half of that "
        "(ulimit -n raises it)",
        soft,
        cause,
    )

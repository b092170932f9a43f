"""The threads that read what is no longer in memory, and what waits for them.

A disk that does not follow, or one that hangs, makes reads pile up. Those that a request waits for
are given up when that has waited for as long as its class may: the client is told that the broker
is busy. Reads that have begun end when the disk lets them.

Source: RocketMQ BrokerFastFailure (pullThreadPoolQueue and others).
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from pymq.broker.config import BrokerConfig
from pymq.broker.pressure.request_classes import class_of
from pymq.errors import refusal
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import waiting_code
from pymq.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_LATE = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {:.0f}ms, "
    "size of queue: {}"
)


class ReadQueue(Executor):
    """A pool of threads whose queue gives up what waits too long.

    Args:
        config: how long requests may wait.
        thread_count: how many read at the same time.
    """

    def __init__(self, config: BrokerConfig, thread_count: int) -> None:
        self._config = config
        self._threads = ThreadPoolExecutor(thread_count, thread_name_prefix="pymq-read")
        #: Reads that have not begun: since when they wait, and the request that waits for each.
        self._waiting: dict[Future[Any], tuple[float, int | None]] = {}
        self._said = SaidOnce(_log)

    def submit(
        self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> "Future[_T]":
        """Have something read; called by the event loop."""
        future: Future[_T] = Future()

        def run() -> None:
            # Taking it out decides between this thread and ``expire``.
            if self._waiting.pop(future, None) is None or not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting[future] = monotonic(), waiting_code.get()
        self._threads.submit(run)
        return future

    def __len__(self) -> int:
        return len(self._waiting)

    def expire(self) -> int:
        """Give up reads whose requests have waited too long; return how many."""
        if not self._waiting:
            self._said.over("late", "reads from the disk are in time again")
        if not self._config.fast_failure:
            return 0
        now_s, count = monotonic(), 0
        for future, (since_s, code) in list(self._waiting.items()):
            field = None if code is None else class_of(code).wait_field
            if field is None or (now_s - since_s) * 1000 < getattr(self._config, field):
                continue
            if self._waiting.pop(future, None) is not None:
                count += 1
                waited_ms = (now_s - since_s) * 1000
                self._said.warn(
                    "late",
                    "a request waited %d ms for a read from the disk to begin and is refused "
                    "(SYSTEM_BUSY), %d wait behind it: consumers read more of what is no longer in "
                    "memory than the disk delivers. Use a faster disk or more memory, or let fewer "
                    "consumers catch up at a time",
                    waited_ms,
                    len(self._waiting),
                )
                remark = _LATE.format(waited_ms, len(self._waiting))
                future.set_exception(refusal(ResponseCode.SYSTEM_BUSY, remark))
        return count

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when what was submitted is done."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

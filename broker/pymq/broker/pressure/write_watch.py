"""Says that a write to the log hangs while it hangs.

A write happens on the event loop. When the disk stops without a sign, such as a flush that takes
long, everybody waits for it, and the log of the broker would say nothing until it is over. In
RocketMQ the threads of other requests go on, and those of sends are told by another thread that the
page cache is busy (BrokerFastFailure); here a thread watches the time and tells the operator.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

_log = logging.getLogger(__name__)

#: How often the thread looks, and what is said.
LOOK_S, LONG_S = 0.5, 1.0


class WriteWatch:
    """A duty with a thread; see the module.

    Args:
        writing_since_s: returns when the write in progress began, by ``time.monotonic``; None:
            there is none. Called by the thread.
    """

    def __init__(self, writing_since_s: Callable[[], float | None]) -> None:
        self._writing_since_s = writing_since_s
        self._closed = threading.Event()
        self._seen_s: float | None = None
        self._said_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="pymq-write-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            self.step()

    def step(self) -> None:
        """Look at the write in progress; say once that it takes long."""
        since_s = self._writing_since_s()
        # One that is seen twice was not just interrupted, with the whole process.
        is_long = since_s is not None and monotonic() - since_s >= LONG_S
        if is_long and since_s == self._seen_s and since_s != self._said_s:
            self._said_s = since_s
            assert since_s is not None
            _log.error(
                "a write to the log has not returned for %.1f s, and nobody is served until it "
                "does: the disk hangs. Look for a failing disk, a network disk that is gone or a "
                "frozen file system (fsfreeze, a snapshot); what the kernel says of it is in dmesg",
                monotonic() - since_s,
            )
        self._seen_s = since_s

    async def close(self) -> None:
        """Stop; idempotent."""
        self._closed.set()

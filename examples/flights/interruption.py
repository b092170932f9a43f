"""Ctrl-C, SIGTERM and SIGHUP: at any moment they cancel the run, and never break off its end."""

import signal
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Takes the signals from the moment when it is made.

    What they do by default would break off whatever runs: an import, a folder being made, or the
    very removal of what an earlier signal interrupted; people press Ctrl-C twice. Here the first
    signal cancels what ``guard`` runs, or keeps it from starting; to all others nothing happens.
    """

    def __init__(self) -> None:
        #: Has there been a signal?
        self.came = False
        self._cancel: Callable[[], object] | None = None
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's `&`
                signal.signal(number, self._take)

    def over(self) -> None:
        """Ignore signals from now on: the interpreter's own end would bring the default back."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _take(self, number: int, frame: FrameType | None) -> None:
        first, self.came = not self.came, True
        if first and self._cancel is not None:
            self._cancel()

    async def guard(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work`` in this task, which the first signal cancels.

        Raises:
            asyncio.CancelledError: there was a signal.
        """
        import asyncio  # not before there are handlers: it takes a tenth of a second

        task = asyncio.current_task()
        assert task is not None
        # Thread-safe not for the sake of threads: it wakes a loop that waits.
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        try:
            if self.came:
                raise asyncio.CancelledError
            await work()
        finally:
            self._cancel = None

"""What a broker does all the time, beside answering requests."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

from pymq.net.tasks import Tasks


class Duty(Protocol):
    """Work that goes on from the start of a broker to its end."""

    def start(self) -> None:
        """Begin."""

    async def close(self) -> None:
        """Stop, with everything done that must not be left; idempotent."""


class Periodic:
    """A duty that calls a function again and again.

    Args:
        name: for logs.
        step: one bounded piece of work.
        interval_s: from one call to the next; also before the first.
    """

    def __init__(self, name: str, step: Callable[[], object], interval_s: float) -> None:
        self._name = name
        self._step = step
        self._interval_s = interval_s
        self._tasks = Tasks(name)

    def start(self) -> None:
        """Begin."""
        self._tasks.repeat(self._name, self._step, self._interval_s)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()


class Duties:
    """Duties and other things that have to be closed: in reverse, each even if another fails."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    def start(self, *duties: Duty) -> None:
        """Start duties, one after the other; each is closed before those that were earlier."""
        for duty in duties:
            self.on_close(duty.close)
            duty.start()

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call ``close`` when it is time, before everything that is here already."""
        self._stack.push_async_callback(close)

    async def close(self) -> None:
        """Close everything; idempotent.

        Raises:
            Exception: the last one that a ``close`` raised; the others are its context.
        """
        await self._stack.aclose()

"""What a broker does all the time, apart from answering requests."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol, runtime_checkable

from pymq.net.tasks import Tasks


class Duty(Protocol):
    """Work that goes on from the start of a broker to its end.

    Started once. What goes on only while a broker has some role is made for each such time, in
    ``Duties`` of its own, by a duty that goes on throughout.
    """

    def start(self) -> None:
        """Begin."""

    async def close(self) -> None:
        """Finish what must not be left undone, and stop; idempotent."""


@runtime_checkable
class TimedDuty(Duty, Protocol):
    """A duty that sleeps until wall time has come to a moment."""

    async def look_again(self) -> None:
        """Do what is due, or have it done soon: wall time has jumped.

        Raises:
            StoreError: something could not be done; it is tried again as always.
        """


class Periodic:
    """A duty that calls a function periodically.

    Args:
        name: for logs.
        step: one bounded piece of work.
        interval_s: before each call, including the first.
        idle_s: the same after a call that returned nothing, or 0; default: no difference.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], object],
        interval_s: float,
        *,
        idle_s: float | None = None,
    ) -> None:
        self._name = name
        self._step = step
        self._interval_s = interval_s
        self._idle_s = idle_s
        self._tasks = Tasks(name)

    def start(self) -> None:
        """Begin."""
        self._tasks.repeat(self._name, self._step, self._interval_s, idle_s=self._idle_s)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()


class Duties:
    """Duties and other things to close: in reverse order, each even if another one fails."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    def start(self, *duties: Duty) -> None:
        """Start duties in order; each is closed before those started earlier."""
        for duty in duties:
            self.on_close(duty.close)
            duty.start()

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register ``close``, to be called before everything registered earlier."""
        self._stack.push_async_callback(close)

    async def close(self) -> None:
        """Close everything; idempotent.

        Raises:
            Exception: the last one raised by a ``close``; the others are its context.
        """
        await self._stack.aclose()

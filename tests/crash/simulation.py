"""What the runs have in common in which parts of a broker work without sockets and threads.

The parts are the real ones; the clock stands still until it is moved, disks work in the thread that
asks, and nothing is flushed before all that was begun has come as far as it can.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from pymq.errors import StoreError
from pymq.store import MessageStore
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep

_Result = TypeVar("_Result")


class Here(Executor):
    """Does everything at once, in the thread that asks."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given, **more))
        except BaseException as error:
            future.set_exception(error)
        return future


class Simulation:
    """Time passes when somebody settles something.

    Attributes:
        files: the disk.
        store: on it.
        waiting: for the log to be flushed: up to where, and whom to tell why not.
        on_turn: called between two turns of a living process, when a consumer may look.
    """

    files: FaultyFiles
    store: MessageStore
    waiting: list[tuple[int, Callable[[str | None], None]]]
    on_turn: Callable[[], None] = staticmethod(lambda: None)

    #: Turns of the event loop in which whatever was begun comes as far as it can.
    TURNS = 12

    def is_settled(self) -> bool:
        """Has all that is not held come to its end?"""
        return True

    def on_idle(self) -> None:
        """Have time pass, for what nothing else brings to its end."""

    async def settle(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Let some work, and everything else that was begun, come to its end.

        Raises:
            Crashed: the process died.
        """
        task = asyncio.ensure_future(work)
        for _ in range(10_000):
            for _ in range(self.TURNS):
                await asyncio.sleep(0)
                if not self.files.crashed:
                    self.on_turn()
            if self.files.crashed:
                task.cancel()
                raise Crashed("in the middle of something")
            if self.waiting:
                self.flush()
            elif task.done() and self.is_settled():
                return task.result()
            self.on_idle()
        raise AssertionError("it never ends")

    async def settle_all(self) -> None:
        """Let everything that was begun come to its end. Raises what ``settle`` does."""
        await self.settle(asyncio.sleep(0))

    def flush(self) -> None:
        """Flush the log, and tell those who wait for that."""
        waiting, self.waiting = self.waiting, []
        reason = None
        try:
            self.store.durability.flush()
        except StoreError as error:
            reason = str(error)
        for end, done in waiting:
            assert reason is not None or self.store.durability.flushed_end >= end
            done(reason)


def random_fault(dice: random.Random) -> Fault | None:
    """Return how the process dies, how the disk is full for a while, or that nothing happens."""
    kind = dice.random()
    at = dice.randint(1, dice.choice((30, 120, 400)))
    if kind < 0.3:
        return None
    if kind < 0.8:
        return Fault(at=at, keep=dice.choice(list(Keep)))
    keep, count = dice.choice(list(Keep)), dice.randint(1, 9)
    return Fault(at=at, code=errno.ENOSPC, keep=keep, count=count)

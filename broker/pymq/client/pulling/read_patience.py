"""When a read with asyncio is tried again, and when it is given up."""

import asyncio

from pymq.client.cluster.pool import ClientPool
from pymq.errors import PymqError

#: Pause between two tries: first, and longest.
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0


class ReadPatience:
    """Tries again after longer and longer pauses, until a deadline. For one event loop.

    The deadline is ``deadline_s`` after the first failure since the last progress. (Blocking
    clients have ``Backoff``.)

    Args:
        pool: routes.
        topic: whose route is doubted after a failure.
        deadline_s: see above.
    """

    def __init__(self, pool: ClientPool, topic: str, *, deadline_s: float) -> None:
        self._pool = pool
        self._topic = topic
        self._deadline_s = deadline_s
        self.progressed()

    def progressed(self) -> None:
        """Start again: something succeeded."""
        self._failed_s: float | None = None
        self._pause_s = PAUSE_FIRST_S

    async def wait(self, error: PymqError) -> None:
        """Wait a little before the next try.

        Args:
            error: how the last one failed; another try may succeed.

        Raises:
            PymqError: ``error`` itself, if it is time to give up.
        """
        now_s = self._pool.loop.time()
        if self._failed_s is None:
            self._failed_s = now_s
        if now_s + self._pause_s > self._failed_s + self._deadline_s:
            error.add_note(f"it was tried again for {now_s - self._failed_s:.0f} s")
            raise error
        self._pool.routes.doubt(self._topic)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

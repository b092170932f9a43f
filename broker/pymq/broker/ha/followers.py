"""Which slaves have the topics and groups of this master.

An administrator's change is acknowledged when the slaves of pymq have it, too: a topic that is
gone after a failover would hide the messages of its queues. A slave asks for changes, and the
question is answered when there is one, so it has them within milliseconds. RocketMQ's slaves do not
ask; they are not waited for.
"""

import asyncio
from collections.abc import Callable

from pymq.net.waiting import happens

#: A slave that has not asked for so long is away.
AWAY_S = 3.0


class Followers:
    """Answers the slaves' questions, and knows from them what they have.

    Args:
        version: names what this master has.
    """

    def __init__(self, version: Callable[[], str]) -> None:
        self._version = version
        #: What each slave has, by its id, and when it said so.
        self._known: dict[int, tuple[str, float]] = {}
        self._moved = asyncio.Event()

    def changed(self) -> None:
        """Something has changed: here, or at a slave."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait_other(self, broker_id: int, version: str, wait_s: float) -> str:
        """Return what this master has, once that is not what a slave has, or time is up."""
        now = asyncio.get_running_loop().time
        deadline_s = now() + wait_s
        self._known[broker_id] = version, now()
        self.changed()
        while self._version() == version and (left_s := deadline_s - now()) > 0:
            self._known[broker_id] = version, now()
            await happens(self._moved, min(left_s, AWAY_S / 3))
        return self._version()

    async def wait_followed(self, timeout_s: float) -> bool:
        """Wait until every slave that is not away has what there is; False: it has not."""
        now = asyncio.get_running_loop().time
        deadline_s = now() + timeout_s
        wanted = self._version()
        while self._version() == wanted:
            since_s = now() - AWAY_S
            if all(has == wanted for has, at_s in self._known.values() if at_s > since_s):
                return True
            if (left_s := deadline_s - now()) <= 0:
                return False
            await happens(self._moved, left_s)
        return True  # Another change is waited for by whoever has made it.

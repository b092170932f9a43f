"""Which pulls a slave has sent back to its master, and sees again: their sender did not go there.

Its route has no master, or the master cannot be reached. It is told the same again, but not at
once: it would come again thousands of times in a second.

Whoever does read at the master, and is sent here once more, is further by then.
"""

from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from pymq.net.server import ServerConnection

#: Consumer group, topic, queue id.
_GroupQueue: TypeAlias = tuple[str, str, int]

#: Queues that are remembered of one connection; with more, all are forgotten.
QUEUES_MAX: Final = 10_000


class SentBack:
    """The offsets of the pulls that were sent back last, by connection."""

    def __init__(self) -> None:
        self._offsets: WeakKeyDictionary[ServerConnection, dict[_GroupQueue, int]]
        self._offsets = WeakKeyDictionary()

    def comes_again(self, connection: ServerConnection, queue: _GroupQueue, offset: int) -> bool:
        """Record that a pull is sent back; return whether it was when it was sent back last.

        Args:
            connection: where it came from.
            queue: group and queue of it.
            offset: where it begins.
        """
        known = self._offsets.setdefault(connection, {})
        if known.get(queue) == offset:
            return True
        if len(known) >= QUEUES_MAX:
            known.clear()
        known[queue] = offset
        return False

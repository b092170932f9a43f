"""Which topic a name stands for: one that is deleted and created again is another one.

Its queues begin at 0 again, so that an offset that somebody kept means another message. RocketMQ
has nothing to tell them apart by. So each topic that is created gets an id, which answers about
the ends of its queues carry (``MaxOffsetResponse``).

The ids are in a file of their own, which RocketMQ does not read. It may lack a topic: one from
before there were ids, or created just before a crash. Such a topic has ``NO_ID`` until it is
created again. So whoever compares two ids takes ``NO_ID`` for unknown if he has another one, but
an id that follows ``NO_ID`` for that of another topic.
"""

import secrets
from collections.abc import Callable

from pymq.protocol import fastjson
from pymq.protocol.bodies import KVTable
from pymq.protocol.headers.offsets import NO_ID


class TopicIds:
    """Topic name -> the id it got when it was created.

    Attributes:
        on_change: called after every change; to be set by whoever needs to know.
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None

    def find(self, topic: str) -> str:
        """Return the id of a topic that exists."""
        return self._ids.get(topic, NO_ID)

    def created(self, topic: str) -> None:
        """Give a topic an id; a crash may have left one of another topic of its name."""
        self._ids[topic] = secrets.token_hex(8)
        self.on_change()

    def deleted(self, topic: str) -> None:
        """Forget the id of a topic."""
        if self._ids.pop(topic, None) is not None:
            self.on_change()

    def body(self) -> bytes:
        """Return all ids, for a slave."""
        return KVTable(table=self._ids).encode()

    def take_over(self, body: bytes) -> None:
        """Have the ids of a master: whoever read there goes on here when this broker is one."""
        ids = KVTable.decode(body).table
        if ids != self._ids:
            self._ids = ids
            self.on_change()

    def to_text(self) -> str:
        """Return the text of ``topicIds.json``."""
        return fastjson.dump_pretty(KVTable(table=self._ids).to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``topicIds.json``."""
        self._ids |= KVTable.from_json(value).table

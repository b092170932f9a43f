"""Which topic a name stands for: one that is deleted and created again is another one.

Its queues begin at 0 again, so that an offset that somebody kept means another message. RocketMQ
has nothing to tell them apart by. So each topic that is created gets an id, which answers about
the ends of its queues carry (``MaxOffsetResponse``). It ends with the physical offset at which the
log ended then, by which a slave knows which messages of that name are those of an earlier topic.

The ids are in a file of their own, which RocketMQ does not read. It may lack a topic: one from
before there were ids, or created just before a crash. Such a topic has ``NO_ID`` until it is
created again. So whoever compares two ids takes ``NO_ID`` for unknown if he has another one, but
an id that follows ``NO_ID`` for that of another topic.
"""

import re
import secrets
import zlib
from collections.abc import Callable

from pymq.protocol import fastjson
from pymq.protocol.bodies import KVTable
from pymq.protocol.headers.offsets import NO_ID

_SEPARATOR, _FIRST = "-", re.compile(r"[0-9a-f]{1,16}")


class TopicIds:
    """Topic name -> the id it got when it was created.

    Attributes:
        on_change: called after every change; to be set by whoever needs to know.
        log_end: returns where the log ends; set likewise.
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.log_end: Callable[[], int] = lambda: 0

    def digest(self) -> str:
        """Return what tells these ids from others."""
        return f"{zlib.crc32(repr(sorted(self._ids.items())).encode()):x}"

    def find(self, topic: str) -> str:
        """Return the id of a topic that exists."""
        return self._ids.get(topic, NO_ID)

    def created(self, topic: str) -> None:
        """Give a topic an id; a crash may have left one of another topic of its name."""
        self._ids[topic] = f"{secrets.token_hex(8)}{_SEPARATOR}{self.log_end():x}"
        self.on_change()

    def deleted(self, topic: str) -> None:
        """Forget the id of a topic."""
        if self._ids.pop(topic, None) is not None:
            self.on_change()

    def first_offsets(self) -> dict[str, int]:
        """Return from which physical offset on there can be messages of each topic, if known."""
        parts = ((topic, one.partition(_SEPARATOR)[2]) for topic, one in self._ids.items())
        return {topic: int(first, 16) for topic, first in parts if _FIRST.fullmatch(first)}

    def log_lost(self) -> None:
        """Have topics that were created behind the end of the log begin there: that was lost."""
        end = self.log_end()
        for topic, first in self.first_offsets().items():
            if first > end:
                token = self._ids[topic].partition(_SEPARATOR)[0]
                self._ids[topic] = f"{token}{_SEPARATOR}{end:x}"
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

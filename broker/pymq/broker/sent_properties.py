"""What a broker adds to the properties of the messages that producers send one by one.

Region, trace switch and cluster are the broker's, whatever the sender says of them: consumers trace
with them, and who replies to a request has to know the cluster. A message without an id gets one.
Of what only brokers may say, the handle of a POP and places in light queues are dropped.

Source: RocketMQ 5.x AbstractSendMessageProcessor.buildMsgContext, SendMessageProcessor.sendMessage.
(4.9 adds nothing but the cluster.)
"""

import os
import random
from collections.abc import Mapping

from pymq.clock import Clock
from pymq.protocol.headers.send import REGION as DEFAULT_REGION
from pymq.protocol.message import (
    CLUSTER,
    POP_CHECK_POINT,
    REGION,
    TRACE_ON,
    UNIQUE_KEY,
    encode_properties,
    without_property,
)
from pymq.protocol.multi_dispatch import OFFSETS as LIGHT_OFFSETS
from pymq.protocol.unique_keys import UniqueKeys, month_around

_DROPPED = (POP_CHECK_POINT, LIGHT_OFFSETS, REGION, TRACE_ON, CLUSTER)
_DROPPED_MARKS = tuple(f"\x02{name}\x01".encode() for name in _DROPPED)
_UNIQUE_KEY_MARK = f"\x02{UNIQUE_KEY}\x01".encode()
_NO_UNIQUE_KEY = _UNIQUE_KEY_MARK + b"\x02"
_NOT_OF_EACH = frozenset((UNIQUE_KEY, *_DROPPED))
_PORT_BYTES = 4


class SentProperties:
    """Completes the properties of sent messages.

    Args:
        cluster: name of the cluster.
        store_host: our packed address, part of the ids that are made here.

    Attributes:
        added: what is added to every message, encoded.
    """

    def __init__(self, cluster: str, clock: Clock, store_host: bytes) -> None:
        self.added = encode_properties({REGION: DEFAULT_REGION, TRACE_ON: "true", CLUSTER: cluster})
        self._added_text = self.added.decode()
        self._clock = clock
        self._keys = UniqueKeys(
            address=store_host[:-_PORT_BYTES],
            pid=os.getpid(),
            salt=random.getrandbits(32),
            start_ms=0,
        )
        self._month_end_ms = 0

    def complete(self, text: str, properties: dict[str, str]) -> str:
        """Return the properties to store of a message.

        Args:
            text: as sent.
            properties: what it says; gets the id.
        """
        for name in _DROPPED:
            if name in properties:
                text = without_property(text, name)
        if text and text[-1] != "\x02":
            text += "\x02"
        if UNIQUE_KEY not in properties:
            key = properties[UNIQUE_KEY] = self._new_key()
            text += f"{UNIQUE_KEY}\x01{key}\x02"
        return text + self._added_text

    def of_batch(self, properties: Mapping[str, str]) -> bytes:
        """Return what is added to each message of a batch: also what is said of the batch.

        But for its id: RocketMQ adds that as well, where it hides the ids of the messages, which
        their sender knows them by.
        """
        said = {name: value for name, value in properties.items() if name not in _NOT_OF_EACH}
        return encode_properties(said) + self.added

    @staticmethod
    def is_simple(joined: bytes, count: int) -> bool:
        """Return whether it is enough to add ``added`` to each of some messages.

        Args:
            joined: their properties, each name with U+0002 in front.
            count: of the messages.
        """
        return (
            joined.count(_UNIQUE_KEY_MARK) == count
            and _NO_UNIQUE_KEY not in joined
            and not any(name in joined for name in _DROPPED_MARKS)
        )

    def _new_key(self) -> str:
        now_ms = self._clock.wall_ms()
        if now_ms >= self._month_end_ms:
            start_ms, self._month_end_ms = month_around(now_ms)
            self._keys.restart(start_ms)
        return self._keys.next(now_ms)

"""Messages that are listed in light queues (LMQ), besides the queue of their topic.

A producer names light queues in the property INNER_MULTI_DISPATCH, separated by commas. Where the
message is stored it gets a place in each of them, and the property INNER_MULTI_QUEUE_OFFSET says
which, in the same order::

    INNER_MULTI_DISPATCH      %LMQ%a,%LMQ%b
    INNER_MULTI_QUEUE_OFFSET  12,7

A light queue is queue 0 of a topic of its name, which has no settings: its entries point to the
records of other topics. From those two properties its entries can be made again.

Messages that only wait in a topic (retry, delays, timers, half messages) are listed when they get
to their own. RocketMQ lists half messages at once, committed or not.

Source: RocketMQ LmqDispatch, MultiDispatchUtils, ConsumeQueue.multiDispatchLmqQueue.
"""

import re
from collections.abc import Mapping

from pymq.protocol import names

DISPATCH = "INNER_MULTI_DISPATCH"
OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
LIGHT_QUEUE_ID = 0
#: Without this in its properties, a message is not listed anywhere else.
DISPATCH_MARK = f"{DISPATCH}\x01".encode()
_OFFSET = re.compile("[0-9]{1,18}")


def is_light(name: str) -> bool:
    """Is this the name of a light queue, or of a group that consumes such?"""
    return name.startswith(names.LMQ_PREFIX)


def is_final(topic: str) -> bool:
    """Do messages of a topic have places in light queues? Not where they only wait."""
    return not (
        topic.startswith((names.RETRY_PREFIX, names.SYSTEM_PREFIX)) or topic == names.SCHEDULE_TOPIC
    )


def split_names(value: str) -> list[str]:
    """Return the names in a value of INNER_MULTI_DISPATCH, as Java's ``split`` does."""
    return value.rstrip(",").split(",") if value.strip() else []


def places(topic: str, properties: Mapping[str, str]) -> dict[str, int]:
    """Return where a stored message is listed: queue offset by light queue.

    Args:
        topic: of the message.
        properties: its properties.
    """
    if not is_final(topic):
        return {}
    queues = split_names(properties.get(DISPATCH, ""))
    offsets = split_names(properties.get(OFFSETS, ""))
    if len(queues) != len(offsets):
        return {}  # as in RocketMQ
    found: dict[str, int] = {}
    for queue, offset in zip(queues, offsets, strict=True):
        if is_light(queue) and _OFFSET.fullmatch(offset):
            found.setdefault(queue, int(offset))
    return found

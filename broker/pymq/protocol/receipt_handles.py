"""Receipt handles: what a consumer sends back to acknowledge a message that it popped.

A handle is eight values separated by blanks, in property ``POP_CK`` of the message::

    start offset, pop time, invisible time, revive queue, kind, broker, queue id, queue offset

Start offset and pop time identify the checkpoint that the message belongs to. The kind says
which topic it was popped from: 0 the topic itself, 1 and 2 its retry topic (``names``: the old
and the new form). Clients make the handles themselves, of fields of the response to a pop,
each of which has one part per queue, separated by semicolons; the third says how often messages
that were popped in order were consumed before::

    startOffsetInfo   <kind> <queue id> <start offset>
    msgOffsetInfo     <kind> <queue id> <queue offset>,<queue offset>,...
    orderCountInfo    <kind> qo<queue id>%<queue offset> <times>
                      <kind> <queue id> <least times>

Source: RocketMQ ExtraInfoUtil.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pymq.errors import RemoteProtocolError
from pymq.protocol import names
from pymq.protocol.headers.codec import parse_int

#: Revive queue in handles of messages that were popped in order: they have no checkpoint.
ORDER_REVIVE_QUEUE = 999


@dataclass(slots=True)
class ReceiptHandle:
    """One handle. Times in ms; ``broker_name`` is the broker that the message was popped from."""

    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    broker_name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of a handle that acknowledging needs.

        Raises:
            RemoteProtocolError: it is not a handle.
        """
        parts = text.split(" ")
        if len(parts) < 6:
            raise RemoteProtocolError(
                f"receipt handle {text[:200]!r} has {len(parts)} parts, expected 6 or more"
            )
        start, pop_time, invisible, revive_queue = map(_number, parts[:4])
        return cls(start, pop_time, invisible, revive_queue, parts[5])

    @property
    def is_order(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE


def _number(text: str) -> int:
    try:
        return parse_int(text)
    except ValueError as error:
        raise RemoteProtocolError(f"receipt handle with {text[:40]!r}: {error}") from error


def encode_handle(
    handle: ReceiptHandle, topic: str, queue_id: int, queue_offset: int
) -> str:
    """Return the text of a handle; ``topic`` is the one that the message lies in."""
    return (
        f"{handle.start_offset} {handle.pop_time} {handle.invisible_ms} {handle.revive_queue_id} "
        f"{topic_kind(topic)} {handle.broker_name} {queue_id} {queue_offset}"
    )


def topic_kind(topic: str) -> str:
    """Return the kind of topic that a message was popped from."""
    if not topic.startswith(names.RETRY_PREFIX):
        return "0"
    return "2" if names.POP_RETRY_MARK_V2 in topic else "1"


def topic_of_kind(topic: str, group: str, kind: str) -> str:
    """Return the topic that a message lies in, for the topic that was subscribed.

    Raises:
        RemoteProtocolError: there is no such kind.
    """
    if kind == "0":
        return topic
    if kind not in ("1", "2"):
        raise RemoteProtocolError(f"kind of topic {kind[:40]!r}, expected 0, 1 or 2")
    return names.pop_retry_topic(topic, group, v2=kind == "2")


def start_offset_info(topic: str, queue_id: int, start_offset: int) -> str:
    """Return one queue's part of ``startOffsetInfo``."""
    return f"{topic_kind(topic)} {queue_id} {start_offset}"


def message_offset_info(topic: str, queue_id: int, queue_offsets: Sequence[int]) -> str:
    """Return one queue's part of ``msgOffsetInfo``."""
    return f"{topic_kind(topic)} {queue_id} {','.join(map(str, queue_offsets))}"


def order_count_info(
    topic: str, queue_id: int, counts: Mapping[int, int], least: int
) -> list[str]:
    """Return one queue's parts of ``orderCountInfo``.

    Args:
        topic, queue_id: where the messages lie.
        counts: queue offset -> how often that message was consumed before, if it was.
        least: the smallest number of all messages popped; old clients read only this.
    """
    kind = topic_kind(topic)
    found = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    return [*found, f"{kind} {queue_id} {least}"]
